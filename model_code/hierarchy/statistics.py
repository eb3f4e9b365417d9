"""What a hierarchy looks like in numbers, and what its fixed depth costs against flat clustering."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.spherical_kmeans import spherical_kmeans
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, silent

DIGITS = 5
CHUNK = 8192


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


def compare_with_flat(
    tree: Hierarchy,
    vectors: np.ndarray,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> list[dict[str, Any]]:
    """One row per level: the mean cosine of the tree's clusters and of flat k-means with as many, on unit `vectors`.

    `lost` is the share of flat k-means's objective that the tree gives up for being a tree; it may be negative, since
    k-means finds local optima only, and is 0 if the objective is: passages that cancel out. The last level of a
    bottom-up tree is flat k-means, so it is not clustered again.
    """
    tensor = unit_vectors(vectors, settings.device)
    rows = []
    for level in range(1, tree.depth + 1):
        ours = flat = float(cosines_at(tree, level, vectors).mean(dtype=np.float64))
        if level < tree.depth or settings.method != "bottom_up":
            with torch.inference_mode():
                clusters = len(tree.parents[level - 1])
                clustering = spherical_kmeans(tensor, clusters, settings, seed, progress, make_lloyd)
            flat = clustering.objective / len(vectors)
        lost = _rounded(1 - ours / flat) + 0.0 if _rounded(flat) else 0.0  # + 0.0 turns -0.0 into 0.0
        rows.append({"level": level, "cosine_tree": _rounded(ours), "cosine_flat": _rounded(flat), "lost": lost})
    return rows


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)
