"""The hierarchy loss over tokens: HCE's equation 5 for an encoder whose vectors are sparse.

The hierarchy is a tree that clusters the passages. The centroid of a node is the mean of T(p), the
0/1 vector of the tokens of p, over the node's passages. As in HCE, it is scaled to unit norm.
Otherwise nodes of long passages would get the highest scores. HCE trains its centroids (section
5.2), but here they are fixed. Training V dimensions per centroid would cost more than training the
encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.losses import quarter_deviation
from model_code.losses.contrastive import softmax_losses
from model_code.losses.hierarchy import siblings


class LevelScores(NamedTuple):
    """The scores of B queries with the K nodes of one level.

    Attributes:
        scores: Score of each query with each node, (B, K).
        ancestors: Number of the node that contains each query's document, (B,) int64.
        compared: The nodes among which each query must find the right one, (B, K) bool.
    """

    scores: Tensor
    ancestors: Tensor
    compared: Tensor


class TokenHierarchy(nn.Module):
    """The hierarchy loss over the first M levels of a tree, with sparse centroids."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        bags: Sequence[np.ndarray],
        vocabulary_size: int,
        levels: int | None,
    ) -> None:
        """Compute the centroids.

        Args:
            hierarchy: A tree of N passages.
            bags: The different token ids of each passage.
            vocabulary_size: Number of vocabulary entries V.
            levels: Number M of levels to use, from the top. None: all levels.
        """
        super().__init__()
        self.vocabulary_size = vocabulary_size
        # The node of each passage at each level, (N, M).
        paths = hierarchy.paths()[:, :levels]
        self.levels = paths.shape[1]
        for level in range(self.levels):
            cells, weights = token_centroids(paths[:, level], bags)
            parents = torch.from_numpy(hierarchy.parents[level]).long()
            self.register_buffer(f"cells_{level}", torch.from_numpy(cells), persistent=False)
            self.register_buffer(f"weights_{level}", torch.from_numpy(weights), persistent=False)
            self.register_buffer(f"parents_{level}", parents, persistent=False)

    def scores(self, columns: Tensor, level: int) -> Tensor:
        """Return the scores of B queries with the nodes of a level.

        A score is the inner product of the query's learned weights and the node's centroid.

        Args:
            columns: Weights of the queries as columns, (V, B), contiguous. On a CPU, the product
                with another memory layout takes about six times as long.
            level: Number of the level, from 0.

        Returns:
            Scores, (B, K_t).
        """
        node_count = len(self.get_buffer(f"parents_{level}"))
        centroids = torch.sparse_coo_tensor(
            self.get_buffer(f"cells_{level}"),
            self.get_buffer(f"weights_{level}").to(columns.dtype),
            (node_count, self.vocabulary_size),
            is_coalesced=True,
            check_invariants=False,
        )
        return torch.sparse.mm(centroids, columns).T

    def forward(
        self, queries: Tensor, scales: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]
    ) -> Tensor:
        """Return the hierarchy loss of each query at each level.

        Args:
            queries: Learned weights of the queries, (B, V).
            scales: Divisors of the levels' scores, (M,).
            paths: Node of each query's document at each level, (B, M) int64; see `HierarchyLoss`.
            excluded: For each level a mask of the nodes that are not negatives, (B, K_t) bool, or
                None; see `HierarchyLoss`.

        Returns:
            Losses, (B, M).
        """
        losses = []
        for level, scale in zip(self._score_levels(queries, paths, excluded), scales, strict=True):
            losses.append(softmax_losses(level.scores / scale, level.ancestors, ~level.compared))
        return torch.stack(losses, dim=1)

    def measure_scales(
        self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]
    ) -> Tensor:
        """Measure the scale by which each level's scores are divided, (M,).

        The scale is a quarter of the standard deviation of queries' scores with their negatives.
        The mean score of a query's negatives is subtracted first. A softmax does not depend on this
        mean, which is much larger than the differences between siblings. See `forward` for the
        arguments.
        """
        scales = []
        for level in self._score_levels(queries, paths, excluded):
            # The negatives are all compared nodes except the one that contains the query's
            # document.
            is_negative = level.compared.scatter(1, level.ancestors[:, None], False)
            deviations = _center_rows(level.scores, is_negative)
            scales.append(quarter_deviation(deviations[None]))
        return torch.stack(scales)

    def _score_levels(
        self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]
    ) -> Iterator[LevelScores]:
        """Yield the scores of queries with the nodes of each level, from the top; see `forward`.

        A query must find the right node among its siblings: the children of the same parent.
        """
        columns = queries.T.contiguous()
        for level in range(self.levels):
            ancestors = paths[:, level]
            parents = self.get_buffer(f"parents_{level}")
            compared = siblings(parents, ancestors, excluded[level])
            yield LevelScores(self.scores(columns, level), ancestors, compared)


def _center_rows(scores: Tensor, selected: Tensor) -> Tensor:
    """Subtract from the selected scores of each row their mean.

    Args:
        scores: B rows of K scores, (B, K).
        selected: Which scores of a row to centre, (B, K) bool. Rows with one such score are
            skipped.

    Returns:
        The centred scores of all rows, (n,).
    """
    counts = selected.sum(dim=1, keepdim=True)
    sums = scores.masked_fill(~selected, 0.0).sum(dim=1, keepdim=True)
    means = sums / counts.clamp(min=1)
    return (scores - means)[selected & (counts > 1)]


def token_centroids(nodes: np.ndarray, bags: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the centroid of each node as the non-zero cells of a sparse matrix.

    A centroid is the mean of the 0/1 token vectors of the node's passages, scaled to unit norm.

    Args:
        nodes: Node of each passage, (N,).
        bags: The different token ids of each passage.

    Returns:
        Node and token of each cell, (2, n) int64, in ascending order, and the weights of the cells,
        (n,) float32.

    >>> bags = [np.array([5, 7]), np.array([5]), np.array([7])]
    >>> cells, weights = token_centroids(np.array([1, 0, 1]), bags)
    >>> cells.tolist(), [round(weight, 3) for weight in weights.tolist()]
    ([[0, 1, 1], [5, 5, 7]], [1.0, 0.447, 0.894])
    """
    # One entry for each token of each passage: the node of the passage, and the token.
    node_of_token = np.repeat(nodes.astype(np.int64), [len(bag) for bag in bags])
    tokens = np.concatenate(bags)

    # The matrix has a row per node and a column per token. Its cells are numbered row by row, and
    # the count of a cell is the number of the node's passages that contain the token.
    width = int(tokens.max(initial=0)) + 1
    cell_numbers, counts = np.unique(node_of_token * width + tokens, return_counts=True)
    cells = np.stack(np.divmod(cell_numbers, width))

    # The mean of a node's n token vectors is the row of counts divided by n. Scaling a row to unit
    # norm gives the same vector with and without this division, so it is left out.
    norms = np.sqrt(np.bincount(cells[0], counts**2))
    weights = counts / norms[cells[0]]
    return cells, weights.astype(np.float32)
