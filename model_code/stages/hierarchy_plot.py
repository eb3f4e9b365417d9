"""Statistics of a hierarchy's levels, and a picture of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from model_code.files import atomic_write
from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.tree import Hierarchy

# Number of decimals to which mean cosines are rounded in the statistics.
COSINE_DECIMALS = 5
# Number of vectors that are compared with their centroids at once. It limits the memory.
CHUNK_ROWS = 8192
# The space between two levels, as a share of the height of a level.
LEVEL_GAP = 0.06
# Smallest width of a box that has an outline, as a share of the picture's width. In narrower boxes
# the outlines would hide the colours.
MIN_OUTLINED_SHARE = 0.003
# Smallest width of a box that shows its number of passages, as a share of the picture's width.
MIN_COUNTED_SHARE = 0.03
# Smallest width of a box that also shows its name, as a share of the picture's width.
MIN_NAMED_SHARE = 0.07


def centroid_cosines(tree: Hierarchy, level: int, vectors: np.ndarray) -> np.ndarray:
    """Return the cosine between the vector of each passage and the centroid of its node.

    Args:
        tree: The hierarchy.
        level: Level of the nodes, from 1 below the root.
        vectors: Vectors of the passages (N, H). They may be memory-mapped.

    Returns:
        Cosines (N,), float32.
    """
    nodes = tree.paths()[:, level - 1]
    centroids = tree.centroids[level - 1]
    cosines = []
    for start in range(0, len(vectors), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        unit = unit_vectors(vectors[rows], "cpu").numpy()
        cosines.append(np.vecdot(unit, centroids[nodes[rows]]))
    return np.concatenate(cosines)


def level_statistics(tree: Hierarchy, vectors: np.ndarray) -> list[dict[str, Any]]:
    """Return a row per level: its nodes, their passages, and the mean cosine to the centroids.

    Args:
        tree: The hierarchy.
        vectors: Vectors of the passages (N, H).
    """
    rows = []
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        cosines = centroid_cosines(tree, level, vectors)
        rows.append(
            {
                "level": level,
                "nodes": len(sizes),
                "passages_min": int(sizes.min()),
                "passages_median": float(np.median(sizes)),
                "passages_max": int(sizes.max()),
                "cosine_mean": round(float(cosines.mean(dtype=np.float64)), COSINE_DECIMALS),
            }
        )
    return rows


def draw_hierarchy(
    tree: Hierarchy, vectors: np.ndarray, path: Path, topics: Sequence[Sequence[str]] = ()
) -> None:
    """Draw the tree as an icicle plot, and write it as PNG. Equal trees give equal bytes.

    In an icicle plot each node is a box, and its children lie below it. The colour of a box is the
    mean cosine between the node's passages and its centroid.

    Args:
        tree: The hierarchy.
        vectors: Vectors of the passages (N, H).
        path: The PNG to write.
        topics: Names of the nodes, level by level. Large boxes show them.
    """
    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()

    boxes = _draw_boxes(axes, tree, vectors)
    _draw_labels(axes, tree, topics)
    _format_axes(axes, tree)
    figure.colorbar(boxes, ax=axes, label="mean cosine to the centroid", fraction=0.03, pad=0.01)
    with atomic_write(path) as staging:
        figure.savefig(staging, format="png", metadata={"Software": None})


def _draw_boxes(axes: Axes, tree: Hierarchy, vectors: np.ndarray) -> PolyCollection:
    """Draw a box per node, as wide as its number of passages."""
    total = len(tree.leaves)
    corners = []
    outlines: list[float] = []
    mean_cosines = []
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        nodes = tree.paths()[:, level - 1]
        cosines = centroid_cosines(tree, level, vectors)
        mean_cosines.append(np.bincount(nodes, cosines) / sizes)

        bottom = level + 1 - LEVEL_GAP
        ends = np.cumsum(sizes)
        for left, right in zip(ends - sizes, ends, strict=True):
            corners.append([(left, level), (right, level), (right, bottom), (left, bottom)])
        is_outlined = sizes > MIN_OUTLINED_SHARE * total
        outlines.extend(np.where(is_outlined, 0.5, 0.0).tolist())

    boxes = PolyCollection(
        corners,
        array=np.concatenate(mean_cosines),
        edgecolors="white",
        linewidths=outlines,
        cmap="viridis",
    )
    axes.add_collection(boxes)
    return boxes


def _draw_labels(axes: Axes, tree: Hierarchy, topics: Sequence[Sequence[str]]) -> None:
    """Write the number of passages, and where it fits the name, into each large box."""
    total = len(tree.leaves)
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        ends = np.cumsum(sizes)
        names = topics[level - 1] if topics else [""] * len(sizes)
        for end, size, name in zip(ends, sizes, names, strict=True):
            if size <= MIN_COUNTED_SHARE * total:
                continue
            label = f"{size:,}"
            if name and size > MIN_NAMED_SHARE * total:
                label = name.replace(", ", "\n") + "\n" + label
            axes.text(
                end - size / 2,
                level + 0.5,
                label,
                ha="center",
                va="center",
                color="white",
                size=8,
            )


def _format_axes(axes: Axes, tree: Hierarchy) -> None:
    """Label the levels and the passages, with level 1 at the top, and remove the frame."""
    total = len(tree.leaves)
    level_names = [
        f"level {level}\n{len(parents):,} nodes"
        for level, parents in enumerate(tree.parents, start=1)
    ]
    axes.set(xlim=(0, total), ylim=(tree.depth + 1, 1 - LEVEL_GAP), xlabel="passages, node by node")
    axes.set_yticks(np.arange(tree.depth) + 1.5, level_names)
    axes.set_title(
        f"{total:,} passages in a hierarchy of {tree.depth} levels", loc="left", weight="bold"
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
