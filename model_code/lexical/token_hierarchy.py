"""The hierarchy loss in a lexical space, where the centroid of a node is the mean of its passages' own tokens.

HCE's centroids are means of passage vectors, and are scored at unit norm (equation 5). Here they are means of T(p). As
T(p) is fixed, and needs no encoder, so are they: unlike HCE's (section 5.2) they are not trained, which at V entries
each would cost more than the encoder. At another norm than one, nodes of long passages would win.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.losses import quarter_deviation
from model_code.losses.hierarchy import siblings
from model_code.losses.softmax import softmax_losses


class TokenHierarchy(nn.Module):
    """The nodes of a tree's first M levels, as the mean tokens of their passages."""

    def __init__(self, hierarchy: Hierarchy, bags: Sequence[np.ndarray], entries: int, levels: int | None) -> None:
        """bags: T(p) of each of the hierarchy's N passages; entries: V; levels: M, None: all."""
        super().__init__()
        self.entries = entries
        paths = hierarchy.paths()[:, :levels]
        self.levels = paths.shape[1]
        for level in range(self.levels):
            places, weights = token_centroids(paths[:, level], bags)
            self.register_buffer(f"places_{level}", torch.from_numpy(places), persistent=False)
            self.register_buffer(f"weights_{level}", torch.from_numpy(weights), persistent=False)
            parents = torch.from_numpy(hierarchy.parents[level]).long()
            self.register_buffer(f"parents_{level}", parents, persistent=False)

    def scores(self, columns: Tensor, level: int) -> Tensor:
        """E(q).c/|c| of B queries with the nodes of a level, from 0: (B, K_t).

        columns: E(q), (V, B), contiguous: of another layout, the product takes some six times as long on a CPU.
        """
        places, weights = self.get_buffer(f"places_{level}"), self.get_buffer(f"weights_{level}").to(columns.dtype)
        shape = (len(self.get_buffer(f"parents_{level}")), self.entries)
        centroids = torch.sparse_coo_tensor(places, weights, shape, is_coalesced=True, check_invariants=False)
        return torch.sparse.mm(centroids, columns).T

    def forward(self, queries: Tensor, scales: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]) -> Tensor:
        """The loss of each of B queries at each level, its scores divided by the level's of M scales: (B, M).

        queries: E(q), (B, V). paths: (B, M) int64 and excluded: as in `HierarchyLoss`.
        """
        losses, columns = [], queries.T.contiguous()
        for level, scale in enumerate(scales):
            nodes = paths[:, level]
            inside = siblings(self.get_buffer(f"parents_{level}"), nodes, excluded[level])
            losses.append(softmax_losses(self.scores(columns, level) / scale, nodes, ~inside))
        return torch.stack(losses, dim=1)

    def spread(self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]) -> Tensor:
        """The scale of each level, a quarter of the standard deviation of a query's scores with its negatives: (M,).

        What all siblings of a query have in common, which no softmax sees, is taken out first: beside it, siblings
        differ by little.
        """
        scales, columns = [], queries.T.contiguous()
        for level in range(self.levels):
            nodes = paths[:, level]
            inside = siblings(self.get_buffer(f"parents_{level}"), nodes, excluded[level])
            negatives = inside.scatter(1, nodes[:, None], False)
            scales.append(quarter_deviation(_centred(self.scores(columns, level), negatives)[None]))
        return torch.stack(scales)


def _centred(scores: Tensor, inside: Tensor) -> Tensor:
    """The scores (B, K) that are `inside`, less their row's mean, of rows that have more than one: (n,)."""
    counts = inside.sum(dim=1, keepdim=True)
    means = scores.masked_fill(~inside, 0.0).sum(dim=1, keepdim=True) / counts.clamp(min=1)
    return (scores - means)[inside & (counts > 1)]


def token_centroids(nodes: np.ndarray, bags: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The mean T(p) of each node's passages, at unit norm: places (2, n) int64, node and token, and weights (n,) there.

    nodes: (N,), each passage's. Places ascend; where there is none, a weight is 0.

    >>> places, weights = token_centroids(np.array([1, 0, 1]), [np.array([5, 7]), np.array([5]), np.array([7])])
    >>> places.tolist(), [round(weight, 3) for weight in weights.tolist()]
    ([[0, 1, 1], [5, 5, 7]], [1.0, 0.447, 0.894])
    """
    lines, tokens = np.repeat(nodes.astype(np.int64), [len(bag) for bag in bags]), np.concatenate(bags)
    width = int(tokens.max(initial=0)) + 1
    keys, counts = np.unique(lines * width + tokens, return_counts=True)
    places = np.stack(np.divmod(keys, width))
    norms = np.sqrt(np.bincount(places[0], counts**2))
    return places, (counts / norms[places[0]]).astype(np.float32)
