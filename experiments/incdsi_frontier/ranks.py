"""Rank old and new documents for queries, given the vectors of the new documents.

The scores of old documents never change, so their ranks are computed once. A trial only computes
the scores of its new vectors. Documents with equal scores are ranked in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Largest rank at which 1 / rank is not 0.
DEPTH = 10
# Number of queries that are scored at once, which limits the memory.
QUERIES_PER_BLOCK = 512


@dataclass(frozen=True)
class Quality:
    """Metrics over the queries for some documents; nan if there are no queries."""

    hit_at_1: float
    hit_at_10: float
    mrr_at_10: float

    @classmethod
    def of(cls, reciprocal_ranks: np.ndarray) -> Quality:
        """Return the quality from 1 / rank of each query, which is 0 beyond rank 10.

        >>> Quality.of(np.array([1.0, 0.5, 0.0, 0.0]))
        Quality(hit_at_1=0.25, hit_at_10=0.5, mrr_at_10=0.375)
        """
        if not len(reciprocal_ranks):
            return cls(float("nan"), float("nan"), float("nan"))
        return cls(
            hit_at_1=float((reciprocal_ranks == 1).mean()),
            hit_at_10=float((reciprocal_ranks > 0).mean()),
            mrr_at_10=float(reciprocal_ranks.mean()),
        )


class ReciprocalRanks(NamedTuple):
    """Reciprocal ranks of the answers of queries, which are 0 beyond rank 10.

    Attributes:
        old: 1 / rank for each query for old documents (m,).
        new: 1 / rank for each query for new documents (k,).
    """

    old: np.ndarray
    new: np.ndarray


class CachedRanks:
    """Ranks and scores among the old documents, from which ranks with new documents follow.

    Args:
        vectors: Vectors (n, H) of the old documents.
        old_queries: Vectors (m, H) of the queries for old documents.
        old_targets: Row of the document that answers each of them (m).
        new_queries: Vectors (k, H) of the queries for new documents.
        new_targets: Number of the new document that answers each of them (k).
    """

    def __init__(
        self,
        vectors: np.ndarray,
        old_queries: np.ndarray,
        old_targets: Sequence[int],
        new_queries: np.ndarray,
        new_targets: Sequence[int],
    ) -> None:
        self.old_queries = np.float32(old_queries)
        self.old_targets = np.array(old_targets, np.int64)
        self.new_queries = np.float32(new_queries)
        self.new_targets = np.array(new_targets, np.int64)

        # Score of each old target, and the number of old documents before it.
        self.old_scores = np.zeros(len(self.old_queries), np.float32)
        self.old_ranks = np.zeros(len(self.old_queries), np.int64)
        for rows in _blocks(len(self.old_queries)):
            scores = self.old_queries[rows] @ vectors.T
            self.old_scores[rows], self.old_ranks[rows] = _ranks(scores, self.old_targets[rows])

        # The ten best scores of old documents for each new query, in descending order. A new
        # document below all of them is beyond rank 10, so no other score is needed.
        self.rivals = np.full((len(self.new_queries), DEPTH), -np.inf, np.float32)
        for rows in _blocks(len(self.new_queries)):
            ascending = np.sort(self.new_queries[rows] @ vectors.T, axis=1)
            best = ascending[:, ::-1][:, :DEPTH]
            self.rivals[rows, : best.shape[1]] = best

    def reciprocal_ranks(
        self, vectors: np.ndarray, numbers: Sequence[int] | None = None
    ) -> ReciprocalRanks:
        """Return reciprocal ranks after new documents were added.

        Args:
            vectors: Vectors (b, H) of the new documents, in the order of their arrival.
            numbers: Numbers of these documents (b). None: 0 to b - 1.

        Returns:
            The values of all queries for old documents (m,). The values of those queries for new
            documents whose document was added, in the order of the queries.

        >>> ranks = CachedRanks(np.eye(2), np.array([[1.0, 0.0]]), [0], np.array([[0.0, 2.0]]), [0])
        >>> old, new = ranks.reciprocal_ranks(np.array([[2.0, 0.5]]))
        >>> old.tolist(), new.tolist()
        ([0.5], [0.5])
        """
        columns = np.float32(vectors).T
        added = np.arange(len(vectors))
        if numbers is None:
            numbers = added

        # Column of each new document by its number; -1 for documents that are not added.
        largest_number = int(self.new_targets.max(initial=-1))
        column_of = np.full(max(len(vectors), largest_number + 1), -1)
        column_of[np.asarray(numbers, np.int64)] = added

        # Only queries whose document was added are evaluated.
        evaluated = np.flatnonzero(column_of[self.new_targets] >= 0)
        targets = column_of[self.new_targets[evaluated]]
        target_scores, ranks_among_new = _ranks(self.new_queries[evaluated] @ columns, targets)
        # Old documents arrived earlier, so they come before new ones in ties.
        ranks_among_old = (self.rivals[evaluated] >= target_scores[:, None]).sum(axis=1)

        old_ranks = self.old_ranks + self._count_better(columns)
        return ReciprocalRanks(
            old=_reciprocal(old_ranks), new=_reciprocal(ranks_among_new + ranks_among_old)
        )

    def _count_better(self, columns: np.ndarray) -> np.ndarray:
        """Count the new documents that score higher than the answer of each query for old ones.

        Args:
            columns: Vectors of the new documents, as columns (H, b).

        Returns:
            Counts (m).
        """
        counts = np.zeros(len(self.old_queries), np.int64)
        for rows in _blocks(len(counts)):
            is_better = self.old_queries[rows] @ columns > self.old_scores[rows, None]
            counts[rows] = is_better.sum(axis=1)
        return counts


def _ranks(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank one target column in each row of scores.

    Args:
        scores: Scores (m, n).
        targets: Target column of each row (m).

    Returns:
        The score of each target (m), and the number of columns that rank before it (m).
    """
    target_scores = scores[np.arange(len(targets)), targets]
    is_better = scores > target_scores[:, None]
    is_tie = scores == target_scores[:, None]
    is_earlier = np.arange(scores.shape[1]) < targets[:, None]
    return target_scores, (is_better | (is_tie & is_earlier)).sum(axis=1)


def _reciprocal(ranks: np.ndarray) -> np.ndarray:
    """Return 1 / rank for ranks that count from 0."""
    return np.where(ranks < DEPTH, 1.0 / (ranks + 1), 0.0)


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + QUERIES_PER_BLOCK) for start in range(0, count, QUERIES_PER_BLOCK)]
