"""A picture of the hierarchy: one row per level, one box per node, as wide as its share of the passages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model_code.files import replacing
from model_code.hierarchy.statistics import cosines_at
from model_code.hierarchy.tree import Hierarchy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

GAP = 0.06  # between two rows, in heights of a row
FINE = 0.003  # of the width: narrower boxes have no outline, or one would see nothing else
LABELLED = 0.03  # of the width: wider boxes name their number of passages


def draw_hierarchy(tree: Hierarchy, vectors: np.ndarray, path: Path) -> None:
    """Draw the tree over the passages' unit `vectors` (N, H) as a PNG at `path`; equal trees give equal bytes.

    Above, the tree as an icicle plot: children under their parent, coloured by the mean cosine of a node's passages to
    its centroid. Below, how many passages the nodes of each level have, and how near their centroids the passages are.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cosines = [cosines_at(tree, level, vectors) for level in range(1, tree.depth + 1)]
    figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["tree", "tree"], ["sizes", "cosines"]], height_ratios=[1.6, 1])
    boxes = _draw_tree(axes["tree"], tree, cosines)
    figure.colorbar(boxes, ax=axes["tree"], label="mean cosine to the centroid", fraction=0.03, pad=0.01)
    _draw_sizes(axes["sizes"], tree)
    _draw_cosines(axes["cosines"], cosines)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", metadata={"Software": None})


def _draw_tree(axes: Axes, tree: Hierarchy, cosines: list[np.ndarray]) -> PolyCollection:
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
        for end, size in zip(ends, sizes, strict=True):
            if size > LABELLED * total:
                axes.text(end - size / 2, level + 0.5, f"{size:,}", ha="center", va="center", color="white", size=8)
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
