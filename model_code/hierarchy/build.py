"""Build the hierarchy: a tree that clusters passage vectors, bottom up (HCE, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from model_code.encoding.hardware import pick_device
from model_code.errors import FreshetError
from model_code.hierarchy.kmeans import Clustering, KMeans
from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.sample_clustering import (
    MAX_CLUSTERED_PASSAGES,
    draw_sample,
    place_all,
    sample_size,
)
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes
from model_code.hierarchy.tree import BLOCK_PASSAGES, Hierarchy
from model_code.progress import Progress, no_progress


def build_hierarchy(
    vectors: np.ndarray,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = no_progress,
    make_lloyd: MakeLloyd = Lloyd,
    max_clustered: int = MAX_CLUSTERED_PASSAGES,
) -> Hierarchy:
    """Cluster passages into a hierarchy. The same seed gives the same tree.

    Of more than `max_clustered` passages, a sample is clustered, and all are placed in its
    clusters; see `sample_clustering`.

    Args:
        vectors: Passage vectors, (N, H). Only their directions matter. They may be memory-mapped.
        settings: Branching factor, iterations and device.
        seed: Seed of k-means.
        progress: Called after each iteration.
        make_lloyd: Creates the engine of k-means. `Lloyd` computes in this process, and
            `distributed.clustering.make_lloyd` on the engine of the settings `scale`.
        max_clustered: Number of passages up to which k-means clusters all of them.

    Raises:
        FreshetError: If there are no vectors, or one has no direction (zero, infinite or NaN).
    """
    require_directions(vectors)
    passages = len(vectors)
    branching = settings.branching or default_branching(passages)
    sizes = level_sizes(passages, branching)
    kmeans = KMeans(settings, seed, progress, make_lloyd)
    clustered = sample_size(passages, sizes[-1], max_clustered)
    with torch.inference_mode():
        if clustered == passages:
            return cluster_bottom_up(unit_vectors(vectors, settings.device), sizes, kmeans)

        sample = vectors[draw_sample(passages, clustered, seed)]
        sample_tree = cluster_bottom_up(unit_vectors(sample, settings.device), sizes, kmeans)
        return cluster_upwards(place_all(sample_tree, vectors), sizes[:-1], kmeans)


def require_directions(vectors: np.ndarray) -> None:
    """Check that vectors have a direction, block by block.

    Args:
        vectors: Vectors, (N, H).

    Raises:
        FreshetError: If there are no vectors, or one has no direction.
    """
    if vectors.ndim != 2 or not len(vectors):
        raise FreshetError(
            "a hierarchy needs vectors (N, H) with N >= 1, not "
            f"{vectors.shape}; is the corpus empty?"
        )
    norms = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), BLOCK_PASSAGES):
        block = vectors[start : start + BLOCK_PASSAGES]
        norms[start : start + len(block)] = np.linalg.norm(block, axis=1)

    has_direction = np.isfinite(norms) & (norms > 0)
    bad_rows = np.flatnonzero(~has_direction)
    if len(bad_rows):
        first = int(bad_rows[0])
        raise FreshetError(
            f"vector {first} (and {len(bad_rows) - 1} more) has norm {float(norms[first])}, so no "
            "direction; encode the corpus again, without empty passages"
        )


def unit_vectors(vectors: np.ndarray, device: str) -> torch.Tensor:
    """Scale vectors (N, H) to unit norm, as a float32 tensor on `device`.

    Each must have a direction; see `require_directions`.
    """
    return normalize(torch.tensor(vectors, dtype=torch.float32, device=pick_device(device)), dim=1)


def cluster_bottom_up(vectors: torch.Tensor, sizes: list[int], kmeans: KMeans) -> Hierarchy:
    """Cluster the passages, then the centroids of each level, up to the root.

    The lowest level is k-means of the passages. An iteration costs O(N K H), with K = N / b for the
    branching factor b.

    Args:
        vectors: Passage vectors, (N, H), of unit norm.
        sizes: Numbers of nodes at levels 1 to depth.
        kmeans: The clustering algorithm.
    """
    return cluster_upwards(kmeans.cluster(vectors, sizes[-1]), sizes[:-1], kmeans)


def cluster_upwards(lowest: Clustering, sizes: list[int], kmeans: KMeans) -> Hierarchy:
    """Cluster the centroids of each level, from the lowest level up to the root.

    All centroids have the same weight, whatever the number of their passages, as in the paper.

    Args:
        lowest: Clusters of the passages, which become the lowest level.
        sizes: Numbers of nodes at the levels above, the highest level first.
        kmeans: The clustering algorithm.
    """
    vectors = lowest.centroids
    centroids = [vectors]
    # One entry per level, the highest level first. It holds the parent on this level of each node
    # one level below. The last entry holds the cluster of each passage.
    parents_below = [lowest.labels]
    for size in reversed(sizes):
        clustering = kmeans.cluster(vectors, size)
        vectors = clustering.centroids
        centroids.insert(0, vectors)
        parents_below.insert(0, clustering.labels)

    root = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    parents = [root, *parents_below[:-1]]
    return number_nodes(centroids, parents, leaves=parents_below[-1])


def number_nodes(
    centroids: list[torch.Tensor], parents: list[torch.Tensor], leaves: torch.Tensor
) -> Hierarchy:
    """Number the nodes of each level so that siblings follow each other, the largest first.

    K-means numbers clusters arbitrarily. In a `Hierarchy`, the children of a node have consecutive
    numbers.

    Args:
        centroids: Centroids of levels 1 to depth, (K, H) each.
        parents: Parent of each node of the same levels, (K,) each.
        leaves: Node of each passage at the last level, (N,).
    """
    parent_arrays = [level_parents.cpu().numpy() for level_parents in parents]
    leaf_nodes = leaves.cpu().numpy()
    sizes = _passages_below(parent_arrays, leaf_nodes)

    new_centroids = []
    new_parents = []
    # New number of each node one level up. Above level 1 there is only the root, number 0.
    new_numbers = np.zeros(1, np.int32)
    for level_centroids, level_parents, passage_counts in zip(
        centroids, parent_arrays, sizes, strict=True
    ):
        renumbered_parents = new_numbers[level_parents]
        order = np.lexsort((-passage_counts, renumbered_parents))
        new_numbers = np.empty(len(order), np.int32)
        new_numbers[order] = np.arange(len(order), dtype=np.int32)
        new_centroids.append(level_centroids.cpu().numpy()[order])
        new_parents.append(renumbered_parents[order])

    return Hierarchy(tuple(new_centroids), tuple(new_parents), new_numbers[leaf_nodes])


def _passages_below(parents: list[np.ndarray], leaf_nodes: np.ndarray) -> list[np.ndarray]:
    """Count the passages below each node: (K_t,) int64 for levels 1 to depth."""
    sizes = [np.bincount(leaf_nodes, minlength=len(parents[-1]))]
    for level in range(len(parents) - 1, 0, -1):
        node_count = len(parents[level - 1])
        counts = np.bincount(parents[level], weights=sizes[0], minlength=node_count)
        sizes.insert(0, counts.astype(np.int64))
    return sizes
