"""The fast tree: split the passages, then each part, and so on, as the Limitations of the HCE paper wish for."""

from __future__ import annotations

import torch

from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.shape import apportion, arrange
from model_code.hierarchy.spherical_kmeans import split_groups
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, silent


def top_down(
    vectors: torch.Tensor,
    sizes: list[int],
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> Hierarchy:
    """Split unit vectors (N, H) into `sizes[0]` nodes, the passages of these into `sizes[1]` altogether, and so on.

    A node gets children in proportion to its passages, b on average, so a level costs O(N b H) per iteration and a
    tree O(N b H log N). Every level has as many nodes as in the bottom-up tree, and every passage the same depth: a
    node of a single passage has a single child.
    """
    centroids, parents = [], []
    labels = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    for size in sizes:
        passages = torch.bincount(labels)
        clustering = split_groups(vectors, labels, apportion(passages, size), settings, seed, progress, make_lloyd)
        centroids.append(clustering.centroids)
        parents.append(clustering.groups)
        labels = clustering.labels
    return arrange(centroids, parents, labels)
