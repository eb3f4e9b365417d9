"""Fit to the hierarchy: how near documents lie to the centroid of their leaf node.

The reference's documents are the ones that the centroids were made from, which draws the centroids near. So each is
placed as if it had come later: the centroid of its own node is computed without it, and it may move to another node.
"""

from __future__ import annotations

import numpy as np

CHUNK = 1024  # documents compared with all centroids at once


def place(vectors: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest of unit `centroids` (L, H) to each of (n, H) unit vectors: nodes (n,) and cosines (n,) float64."""
    nodes, cosines = np.empty(len(vectors), np.int64), np.empty(len(vectors))
    for start in range(0, len(vectors), CHUNK):
        part = slice(start, start + CHUNK)
        scores = vectors[part] @ centroids.T
        nodes[part], cosines[part] = scores.argmax(axis=1), scores.max(axis=1)
    return nodes, cosines


def place_left_out(
    vectors: np.ndarray, leaves: np.ndarray, centroids: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`place` for the documents `rows`, each against the centroids that the other documents give.

    vectors: (N, H) of all documents, leaves: (N,) the node of each, centroids: (L, H). A node that only the document
    itself is in does not count for it.
    """
    sums = np.zeros(centroids.shape)
    np.add.at(sums, leaves, vectors.astype(np.float64))
    nodes, cosines = np.empty(len(rows), np.int64), np.empty(len(rows))
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        scores = (vectors[part] @ centroids.T).astype(np.float64)
        scores[np.arange(len(part)), leaves[part]] = _own_cosines(vectors[part].astype(np.float64), sums[leaves[part]])
        nodes[start : start + CHUNK], cosines[start : start + CHUNK] = scores.argmax(axis=1), scores.max(axis=1)
    return nodes, cosines


def _own_cosines(vectors: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Cosine to the mean of the node's other documents, -1 where there is none."""
    others = sums - vectors
    norms = np.linalg.norm(others, axis=1)
    alone = norms < 1e-5  # what is left of a sum of float32 vectors after its only one is taken away
    return np.where(alone, -1.0, (vectors * others).sum(axis=1) / np.where(alone, 1.0, norms))


def mean_difference(old: np.ndarray, new: np.ndarray) -> float:
    """Mean of `new` minus mean of `old`."""
    return float(new.mean(dtype=np.float64) - old.mean(dtype=np.float64))


def null_mean_difference(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Mean of each drawn batch minus mean of the rest: (B,). values: (n,), members: (B, n)."""
    total, size = values.sum(dtype=np.float64), members.sum(axis=1)
    inside = members @ values.astype(np.float64)
    return inside / size - (total - inside) / (len(values) - size)
