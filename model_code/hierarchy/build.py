"""From passage vectors to a hierarchy, bottom up as in the paper (HCE, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from model_code.encoding.hardware import pick_device
from model_code.errors import FreshetError
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, no_progress


def build_hierarchy(
    vectors: np.ndarray,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = no_progress,
    make_lloyd: MakeLloyd = Lloyd,
) -> Hierarchy:
    """The hierarchy of passages with `vectors` (N, H), of which only the directions count; the same
    for the same seed.

    make_lloyd: the engine of k-means: `Lloyd`, in this process, or `scale.clustering.make_lloyd`,
    as the settings say. Raises `FreshetError` for no vectors, and for vectors without a direction
    (zero, infinite or not a number).
    """
    unit = unit_vectors(vectors, settings.device)
    sizes = level_sizes(len(unit), settings.branching or default_branching(len(unit)))
    with torch.inference_mode():
        return bottom_up(unit, sizes, KMeans(settings, seed, progress, make_lloyd))


def unit_vectors(vectors: np.ndarray, device: str) -> torch.Tensor:
    """The vectors (N, H) at unit norm, as a float32 tensor on `device`."""
    if vectors.ndim != 2 or not len(vectors):
        raise FreshetError(
            f"a hierarchy needs vectors (N, H) with N >= 1, not {vectors.shape}; is the corpus empty?"
        )
    tensor = torch.tensor(vectors, dtype=torch.float32, device=pick_device(device))
    norms = tensor.norm(dim=1)
    bad = torch.nonzero(~(torch.isfinite(norms) & (norms > 0)))[:, 0]
    if len(bad):
        raise FreshetError(
            f"vector {int(bad[0])} (and {len(bad) - 1} more) has norm {float(norms[bad[0]])}, so no direction; "
            "encode the corpus again, without empty passages"
        )
    return normalize(tensor, dim=1)


def bottom_up(vectors: torch.Tensor, sizes: list[int], kmeans: KMeans) -> Hierarchy:
    """Cluster unit vectors (N, H) into `sizes[-1]` nodes, their centroids into `sizes[-2]`, up to
    `sizes[0]`.

    The last level is flat k-means of the passages, and costs O(N K H) per iteration, K = N / b.
    Centroids count alike in the levels above, however many passages they stand for, as in the
    paper.
    """
    centroids: list[torch.Tensor] = []
    # the node above each passage, then above each node, level by level upwards
    links: list[torch.Tensor] = []
    for size in reversed(sizes):
        clustering = kmeans.divide(vectors, size)
        vectors = clustering.centroids
        centroids.insert(0, vectors)
        links.insert(0, clustering.labels)
    root = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    return arrange(centroids, [root, *links[:-1]], links[-1])


def arrange(
    centroids: list[torch.Tensor], parents: list[torch.Tensor], leaves: torch.Tensor
) -> Hierarchy:
    """A `Hierarchy` of these nodes, renumbered: by parent, and among siblings the one with most
    passages first.

    `centroids[i]` (K, H) and `parents[i]` (K,) belong to level i + 1; `leaves` (N,) holds nodes of
    the last level.
    """
    sizes = [np.bincount(leaves.cpu().numpy(), minlength=len(parents[-1]))]
    for level in range(len(parents) - 1, 0, -1):
        counts = np.bincount(
            parents[level].cpu().numpy(), sizes[0], minlength=len(parents[level - 1])
        )
        sizes.insert(0, counts.astype(np.int64))
    number, arrays = np.zeros(1, np.int32), []
    for vectors, above, size in zip(centroids, parents, sizes, strict=True):
        above = number[above.cpu().numpy()]
        order = np.lexsort((-size, above))
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        arrays.append((vectors.cpu().numpy()[order], above[order]))
    return Hierarchy(
        tuple(c for c, _ in arrays), tuple(p for _, p in arrays), number[leaves.cpu().numpy()]
    )
