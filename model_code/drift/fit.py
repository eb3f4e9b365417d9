"""Fit to the hierarchy: how near documents lie to the centroid of their leaf node.

Documents that a clustering was made from lie nearer to its centroids than later ones, in no drift at all: it settled
around them, and leaving each out of its own centroid takes back but four fifths of that (measured on docstrings, 16
documents per node). So reference and new documents are both placed in a twin of the hierarchy, clustered without the
reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from model_code.hierarchy.tree import Hierarchy

CHUNK = 1024  # documents compared with all centroids at once
CLUSTERED, PER_LEAF, ITERATIONS = 20_000, 8, 20  # of a twin: most passages, passages per leaf node, of k-means


def place(vectors: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest of unit `centroids` (L, H) to each of (n, H) unit vectors: nodes (n,) and cosines (n,) float64."""
    nodes, cosines = np.empty(len(vectors), np.int64), np.empty(len(vectors))
    for start in range(0, len(vectors), CHUNK):
        part = slice(start, start + CHUNK)
        scores = vectors[part] @ centroids.T
        nodes[part], cosines[part] = scores.argmax(axis=1), scores.max(axis=1)
    return nodes, cosines


def twin(
    vectors: np.ndarray, hierarchy: Hierarchy, rows: np.ndarray, level: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Centroids (L, H) of leaf nodes made without the passages `rows`, and the node (L,) at `level` that each is under.

    vectors: (N, H) of all passages of `hierarchy`, which has as many leaf nodes, unless the twin's would have fewer
    than PER_LEAF passages on average. At most CLUSTERED of the others are clustered.
    """
    from model_code.hierarchy.build import unit_vectors
    from model_code.hierarchy.kmeans import spherical_kmeans
    from model_code.hierarchy.settings import HierarchySettings

    others = np.setdiff1d(np.arange(len(vectors)), rows)
    others = np.sort(np.random.default_rng([seed, len(others)]).permutation(others)[:CLUSTERED])
    leaves = min(len(hierarchy.centroids[-1]), max(1, len(others) // PER_LEAF))
    settings = HierarchySettings(max_iterations=ITERATIONS, device="cpu")
    found = spherical_kmeans(unit_vectors(vectors[others], "cpu"), leaves, settings, seed)
    centroids = found.centroids.cpu().numpy()
    return centroids, hierarchy.place(centroids)[:, level - 1]


def mean_difference(old: np.ndarray, new: np.ndarray) -> float:
    """Mean of `new` minus mean of `old`."""
    return float(new.mean(dtype=np.float64) - old.mean(dtype=np.float64))


def null_mean_difference(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Mean of each drawn batch minus mean of the rest: (B,). values: (n,), members: (B, n)."""
    total, size = values.sum(dtype=np.float64), members.sum(axis=1)
    inside = members @ values.astype(np.float64)
    return inside / size - (total - inside) / (len(values) - size)
