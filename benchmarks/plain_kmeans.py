"""Spherical k-means as the HCE paper prints it (Algorithm 2), all points against all centroids: a peer, not a tool."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

BLOCK = 2**24  # inner products at once


def algorithm_2(vectors: torch.Tensor, clusters: int, iterations: int, seed: int) -> torch.Tensor:
    """Centroids (K, H) of unit `vectors` (N, H): dealt at random at first, until none moves or `iterations` are over.

    A cluster that loses its last point keeps its centroid; the paper does not say what becomes of it.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(clusters, (len(vectors),), generator=generator).to(vectors.device)
    centroids = vectors.new_zeros(clusters, vectors.shape[1])
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).index_add_(0, labels, vectors)
        filled = torch.bincount(labels, minlength=clusters) > 0
        centroids = torch.where(filled[:, None], normalize(sums, dim=1), centroids)
        before, labels = labels, nearest(vectors, centroids)[1]
        if torch.equal(before, labels):
            break
    return centroids


def nearest(vectors: torch.Tensor, centroids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest cosine of each unit vector (N, H) to unit `centroids` (K, H), and which one has it: (N,), (N,)."""
    parts = [(part @ centroids.T).max(dim=1) for part in vectors.split(max(1, BLOCK // len(centroids)))]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])
