"""What a hierarchy looks like, in numbers and as a picture, and what its fixed depth costs against flat clustering."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from model_code.files import replacing
from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.tree import Hierarchy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

DIGITS = 5
CHUNK = 8192
GAP = 0.06  # between two rows, in heights of a row
FINE = 0.003  # of the width: narrower boxes have no outline, or one would see nothing else
NAMED = 0.07  # wider boxes show their name, too
LABELLED = 0.03  # of the width: wider boxes name their number of passages


def cosines_at(tree: Hierarchy, level: int, vectors: np.ndarray) -> np.ndarray:
    """Cosine of each passage's unit vector (N, H) to the centroid of its node at `level`: (N,) float32."""
    nodes = tree.paths()[:, level - 1]
    parts = [slice(start, start + CHUNK) for start in range(0, len(vectors), CHUNK)]
    return np.concatenate([np.vecdot(vectors[part], tree.centroids[level - 1][nodes[part]]) for part in parts])


def level_statistics(tree: Hierarchy, vectors: np.ndarray) -> list[dict[str, Any]]:
    """One row per level: number of nodes, their children and passages, and how near the passages are to them.

    `vectors` (N, H) are the passages' unit vectors. `children_max` of the last level is its `passages_max`.
    `cosine_5th_percentile` is the cosine to the centroid that 5 % of the passages fall short of.
    """
    rows = []
    for level in range(1, tree.depth + 1):
        sizes, cosines = tree.sizes(level), cosines_at(tree, level, vectors)
        below = tree.parents[level] if level < tree.depth else tree.leaves
        rows.append(
            {
                "level": level,
                "nodes": len(sizes),
                "children_max": int(np.bincount(below).max()),
                "passages_min": int(sizes.min()),
                "passages_median": float(np.median(sizes)),
                "passages_mean": _rounded(sizes.mean()),
                "passages_max": int(sizes.max()),
                "cosine_mean": _rounded(cosines.mean(dtype=np.float64)),
                "cosine_5th_percentile": _rounded(np.quantile(cosines, 0.05)),
            }
        )
    return rows


def compare_with_flat(tree: Hierarchy, vectors: np.ndarray, kmeans: KMeans) -> list[dict[str, Any]]:
    """One row per level: the mean cosine of the tree's clusters and of flat k-means with as many, on unit `vectors`.

    `lost` is the share of flat k-means's objective that the tree gives up for being a tree; it may be negative, since
    k-means finds local optima only, and is 0 if the objective is: passages that cancel out. The last level of a
    bottom-up tree is flat k-means, so it is not clustered again.
    """
    tensor = unit_vectors(vectors, kmeans.settings.device)
    rows = []
    for level in range(1, tree.depth + 1):
        ours = flat = float(cosines_at(tree, level, vectors).mean(dtype=np.float64))
        if level < tree.depth or kmeans.settings.method != "bottom_up":
            with torch.inference_mode():
                clustering = kmeans.divide(tensor, len(tree.parents[level - 1]))
            flat = clustering.objective / len(vectors)
        lost = _rounded(1 - ours / flat) + 0.0 if _rounded(flat) else 0.0  # + 0.0 turns -0.0 into 0.0
        rows.append({"level": level, "cosine_tree": _rounded(ours), "cosine_flat": _rounded(flat), "lost": lost})
    return rows


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)


def draw_hierarchy(tree: Hierarchy, vectors: np.ndarray, path: Path, topics: Sequence[Sequence[str]] = ()) -> None:
    """Draw the tree over the passages' unit `vectors` (N, H) as a PNG at `path`; equal trees give equal bytes.

    Above, the tree as an icicle plot: children under their parent, coloured by the mean cosine of a node's passages to
    its centroid. Below, how many passages the nodes of each level have, and how near their centroids the passages are.
    topics: the nodes' names, level by level, which large nodes show.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cosines = [cosines_at(tree, level, vectors) for level in range(1, tree.depth + 1)]
    figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["tree", "tree"], ["sizes", "cosines"]], height_ratios=[1.6, 1])
    boxes = _draw_tree(axes["tree"], tree, cosines, topics)
    figure.colorbar(boxes, ax=axes["tree"], label="mean cosine to the centroid", fraction=0.03, pad=0.01)
    _draw_sizes(axes["sizes"], tree)
    _draw_cosines(axes["cosines"], cosines)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", metadata={"Software": None})


def _draw_tree(
    axes: Axes, tree: Hierarchy, cosines: list[np.ndarray], topics: Sequence[Sequence[str]]
) -> PolyCollection:
    from matplotlib.collections import PolyCollection

    total, corners, outlines, means = len(tree.leaves), [], [], []
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        ends = np.cumsum(sizes)
        means.append(np.bincount(tree.paths()[:, level - 1], cosines[level - 1]) / sizes)
        top, bottom = level, level + 1 - GAP
        for x0, x1 in zip(ends - sizes, ends, strict=True):
            corners.append([(x0, top), (x1, top), (x1, bottom), (x0, bottom)])
        outlines += np.where(sizes > FINE * total, 0.5, 0.0).tolist()
        names = topics[level - 1] if topics else [""] * len(sizes)
        for end, size, name in zip(ends, sizes, names, strict=True):
            if size > LABELLED * total:
                named = name.replace(", ", "\n") if size > NAMED * total else ""
                text = f"{named}\n{size:,}".strip()
                axes.text(end - size / 2, level + 0.5, text, ha="center", va="center", color="white", size=8)
    colours = np.concatenate(means)
    boxes = PolyCollection(corners, array=colours, edgecolors="white", linewidths=outlines, cmap="viridis")
    axes.add_collection(boxes)
    axes.set(xlim=(0, total), ylim=(tree.depth + 1, 1 - GAP), xlabel="passages, node by node")
    names = [f"level {level}\n{len(parents):,} nodes" for level, parents in enumerate(tree.parents, start=1)]
    axes.set_yticks(np.arange(tree.depth) + 1.5, names)
    axes.set_title(f"{total:,} passages in a hierarchy of {tree.depth} levels", loc="left", weight="bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return boxes


def _draw_sizes(axes: Axes, tree: Hierarchy) -> None:
    for level in range(1, tree.depth + 1):
        sizes = np.sort(tree.sizes(level))[::-1]
        share = np.linspace(0, 100, len(sizes)) if len(sizes) > 1 else np.array([0.0, 100.0])
        axes.step(share, np.resize(sizes, len(share)), where="mid", color=_colour(level))
    axes.set(yscale="log", xlabel="nodes, largest first (%)", ylabel="passages per node")
    axes.set_title("sizes", loc="left")
    _tidy(axes)


def _draw_cosines(axes: Axes, cosines: list[np.ndarray]) -> None:
    for level, values in enumerate(cosines, start=1):
        share = np.linspace(0, 100, len(values))
        axes.plot(np.sort(values), share, color=_colour(level), label=f"level {level}, mean {values.mean():.2f}")
    axes.set(ylim=(0, 100), xlabel="cosine of a passage to its centroid", ylabel="passages at or below (%)")
    axes.set_title("nearness", loc="left")
    axes.legend(frameon=False, fontsize=8)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _colour(level: int) -> str:
    return f"C{level - 1}"
