"""How the nodes of a level are shared out among those above, and in which order they stand."""

from __future__ import annotations

import numpy as np
import torch

from model_code.hierarchy.tree import Hierarchy


def apportion(sizes: torch.Tensor, total: int) -> torch.Tensor:
    """Divide `total` children among nodes in proportion to their `sizes` (G,): (G,) int64, by largest remainder.

    Each node gets at least one child and at most one per passage, so `total` must lie between G and the sum of `sizes`.

    >>> apportion(torch.tensor([60, 30, 9, 1]), 10).tolist()
    [5, 3, 1, 1]
    """
    share = sizes.double() * total / sizes.sum()
    counts = torch.minimum(share.long().clamp(min=1), sizes)
    while missing := total - int(counts.sum()):
        sign = 1 if missing > 0 else -1
        free = counts < sizes if missing > 0 else counts > 1
        wish = torch.where(free, sign * (share - counts), -torch.inf)
        chosen = torch.argsort(wish, descending=True, stable=True)[: min(abs(missing), int(free.sum()))]
        counts[chosen] += sign
    return counts


def arrange(centroids: list[torch.Tensor], parents: list[torch.Tensor], leaves: torch.Tensor) -> Hierarchy:
    """A `Hierarchy` of these nodes, renumbered: by parent, and among siblings the one with most passages first.

    `centroids[i]` (K, H) and `parents[i]` (K,) belong to level i + 1; `leaves` (N,) holds nodes of the last level.
    """
    sizes = [np.bincount(leaves.cpu().numpy(), minlength=len(parents[-1]))]
    for level in range(len(parents) - 1, 0, -1):
        counts = np.bincount(parents[level].cpu().numpy(), sizes[0], minlength=len(parents[level - 1]))
        sizes.insert(0, counts.astype(np.int64))
    number, arrays = np.zeros(1, np.int32), []
    for vectors, above, size in zip(centroids, parents, sizes, strict=True):
        above = number[above.cpu().numpy()]
        order = np.lexsort((-size, above))
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        arrays.append((vectors.cpu().numpy()[order], above[order]))
    return Hierarchy(tuple(c for c, _ in arrays), tuple(p for _, p in arrays), number[leaves.cpu().numpy()])
