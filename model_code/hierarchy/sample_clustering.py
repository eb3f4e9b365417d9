"""Cluster a sample of many passages, and place all passages in the clusters of the sample.

K-means of all N passages costs N K products per iteration, for K clusters. With a sample of fixed
size, only the placing of the passages depends on N. It descends the tree and compares a passage
with a small share of the clusters. Vectors are read in blocks, so that they need not fit into
memory.
"""

from __future__ import annotations

import numpy as np
import torch

from model_code.hierarchy.kmeans import Clustering
from model_code.hierarchy.tree import BLOCK_PASSAGES, PLACEMENT_BEAM, Hierarchy

MAX_CLUSTERED_PASSAGES = 200_000
"""Number of passages up to which k-means clusters all of them."""

MIN_SAMPLED_PER_CLUSTER = 16
"""Smallest mean number of sampled passages per cluster. With 8, the mean cosine of 21,000 sentence
vectors to their centroids is lower by 1.7 %, and with 16 by .9 %.
"""

PLACEMENT_ROUNDS = 2
"""How often all passages are placed. After each round, the centroids are computed from all of them.
The second round regains half of the cosine that the sample costs.
"""


def sample_size(passages: int, clusters: int, max_clustered: int) -> int:
    """Return how many passages k-means clusters; all of them if there are few.

    Args:
        passages: Number N of passages.
        clusters: Number of clusters at the lowest level.
        max_clustered: Number of passages up to which all are clustered.

    >>> sample_size(1_000_000, 7_813, 200_000), sample_size(10_000_000, 39_063, 200_000)
    (200000, 625008)
    """
    return min(passages, max(max_clustered, MIN_SAMPLED_PER_CLUSTER * clusters))


def draw_sample(passages: int, size: int, seed: int) -> np.ndarray:
    """Draw the numbers of different passages, ascending, (size,) int64.

    Args:
        passages: Number of passages to draw from.
        size: Number of passages to draw.
        seed: Seed of the draw.
    """
    numbers = np.random.default_rng(seed).choice(passages, size, replace=False)
    return np.sort(numbers)


def place_all(sample_tree: Hierarchy, vectors: np.ndarray) -> Clustering:
    """Place all passages in the lowest clusters of a tree, whose centroids follow the passages.

    Each round places every passage at the nearest centroid that it finds, and then computes the
    centroids from all passages, as an iteration of k-means does.

    Args:
        sample_tree: Hierarchy of a sample of the passages.
        vectors: Vectors of all passages, (N, H), each with a direction.

    Returns:
        The clusters of all passages. Clusters without any passage are left out.
    """
    tree = sample_tree
    for _ in range(PLACEMENT_ROUNDS):
        leaves, sums = _place_once(tree, vectors)
        is_occupied = np.bincount(leaves, minlength=len(sums)) > 0
        centroids = tree.centroids[-1].copy()
        centroids[is_occupied] = unit_rows(sums[is_occupied])
        tree = Hierarchy((*tree.centroids[:-1], centroids), tree.parents, tree.leaves)

    objective = float(np.vecdot(sums, centroids.astype(np.float64)).sum())
    new_numbers = np.cumsum(is_occupied) - 1
    return Clustering(
        torch.from_numpy(centroids[is_occupied]),
        torch.from_numpy(new_numbers[leaves]),
        objective,
    )


def _place_once(tree: Hierarchy, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place all passages, and sum their vectors by cluster.

    Returns:
        The cluster of each passage, (N,) int64, and the sum of the unit vectors of each cluster,
        (K, H) float64.
    """
    leaves = np.empty(len(vectors), np.int64)
    sums = np.zeros(tree.centroids[-1].shape)
    for start in range(0, len(vectors), BLOCK_PASSAGES):
        block = unit_rows(np.asarray(vectors[start : start + BLOCK_PASSAGES], np.float32))
        block_leaves = tree.nearest_leaves(block, PLACEMENT_BEAM)
        leaves[start : start + len(block)] = block_leaves

        # Sort the passages by cluster, and sum the vectors of each cluster at once.
        order = np.argsort(block_leaves, kind="stable")
        clusters, starts = np.unique(block_leaves[order], return_index=True)
        sums[clusters] += np.add.reduceat(block[order], starts, axis=0, dtype=np.float64)
    return leaves, sums


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (n, H) to unit norm, as float32. None of them may be zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / norms).astype(np.float32)
