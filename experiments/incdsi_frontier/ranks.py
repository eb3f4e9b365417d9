"""Ranks of old and new documents for a trial's vectors, with cached ranks of the old documents.

The old documents' scores never change, so their ranks are computed once. A trial only adds the few
columns of its new vectors. Older documents come first in ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEPTH = 10
BLOCK = 512


@dataclass(frozen=True)
class Quality:
    """Shares and means over the queries of some documents; nan without queries."""

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
        first, found = reciprocal_ranks == 1, reciprocal_ranks > 0
        return cls(float(first.mean()), float(found.mean()), float(reciprocal_ranks.mean()))


class CachedRanks:
    """Ranks among the old `vectors` (n, H), to be merged with ranks of new vectors.

    old_queries: Queries (m, H) for the old rows `old_targets` (m).
    new_queries: Queries (k, H) for the new documents `new_targets` (k), which are numbers below
    `count`.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        old_queries: np.ndarray,
        old_targets: Sequence[int],
        new_queries: np.ndarray,
        new_targets: Sequence[int],
    ) -> None:
        self.old_queries, self.new_queries = np.float32(old_queries), np.float32(new_queries)
        self.old_targets, self.new_targets = (
            np.array(old_targets, np.int64),
            np.array(new_targets, np.int64),
        )
        # Scores of the targets.
        self.old_scores = np.zeros(len(self.old_queries), np.float32)
        # Ranks of the targets, from 0.
        self.old_ranks = np.zeros(len(self.old_queries), np.int64)
        # Best scores of old documents.
        self.rivals = np.full((len(self.new_queries), DEPTH), -np.inf, np.float32)
        for rows in _blocks(len(self.old_queries)):
            scores = self.old_queries[rows] @ vectors.T
            self.old_scores[rows], self.old_ranks[rows] = _ranks(scores, self.old_targets[rows])
        for rows in _blocks(len(self.new_queries)):
            best = np.sort(self.new_queries[rows] @ vectors.T, axis=1)[:, : -DEPTH - 1 : -1]
            self.rivals[rows, : best.shape[1]] = best

    def reciprocal_ranks(
        self, vectors: np.ndarray, numbers: Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return 1 / rank up to rank 10, else 0, after `vectors` (b, H) are added in this order.

        The result has the values of all old queries (m), and of the new queries for one of these
        documents, in their order. `numbers` are the numbers of the new documents; None means the
        first b.

        >>> ranks = CachedRanks(np.eye(2), np.array([[1.0, 0.0]]), [0], np.array([[0.0, 2.0]]), [0])
        >>> old, new = ranks.reciprocal_ranks(np.array([[2.0, 0.5]]))
        >>> old.tolist(), new.tolist()
        ([0.5], [0.5])
        """
        columns = np.float32(vectors).T
        place = np.full(max(len(vectors), int(self.new_targets.max(initial=-1)) + 1), -1)
        place[np.arange(len(vectors)) if numbers is None else np.asarray(numbers, np.int64)] = (
            np.arange(len(vectors))
        )
        asked = np.flatnonzero(place[self.new_targets] >= 0)
        own, among_new = _ranks(self.new_queries[asked] @ columns, place[self.new_targets[asked]])
        among_old = (self.rivals[asked] >= own[:, None]).sum(axis=1)
        return _reciprocal(self.old_ranks + self._ahead(columns)), _reciprocal(
            among_new + among_old
        )

    def _ahead(self, columns: np.ndarray) -> np.ndarray:
        """Count the new vectors, `columns` (H, b), that beat each old query's target: (m)."""
        found = np.zeros(len(self.old_queries), np.int64)
        for rows in _blocks(len(found)):
            found[rows] = (self.old_queries[rows] @ columns > self.old_scores[rows, None]).sum(
                axis=1
            )
        return found


def _ranks(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each row's target column (m), and the number of columns before it (m)."""
    own = scores[np.arange(len(targets)), targets]
    earlier = (scores == own[:, None]) & (np.arange(scores.shape[1]) < targets[:, None])
    return own, ((scores > own[:, None]) | earlier).sum(axis=1)


def _reciprocal(ranks: np.ndarray) -> np.ndarray:
    return np.where(ranks < DEPTH, 1.0 / (ranks + 1), 0.0)


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, count, BLOCK)]
