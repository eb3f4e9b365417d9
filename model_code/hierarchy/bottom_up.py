"""The paper's tree: cluster the passages, then the centroids of the clusters, and so on (HCE, Algorithm 1)."""

from __future__ import annotations

import torch

from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.shape import arrange
from model_code.hierarchy.spherical_kmeans import spherical_kmeans
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, silent


def bottom_up(
    vectors: torch.Tensor,
    sizes: list[int],
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> Hierarchy:
    """Cluster unit vectors (N, H) into `sizes[-1]` nodes, their centroids into `sizes[-2]`, up to `sizes[0]`.

    The last level is flat k-means of the passages, and costs O(N K H) per iteration, K = N / b. Centroids count alike
    in the levels above, however many passages they stand for, as in the paper.
    """
    centroids: list[torch.Tensor] = []
    links: list[torch.Tensor] = []  # the node above each passage, then above each node, level by level upwards
    for size in reversed(sizes):
        clustering = spherical_kmeans(vectors, size, settings, seed, progress, make_lloyd)
        vectors = clustering.centroids
        centroids.insert(0, vectors)
        links.insert(0, clustering.labels)
    root = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    return arrange(centroids, [root, *links[:-1]], links[-1])
