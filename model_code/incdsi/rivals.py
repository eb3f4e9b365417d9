"""The documents that a new one competes with for its own query: M of the objective, exactly, from one inexact pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model_code.incdsi.passes import Pass
from model_code.incdsi.scores import dots
from model_code.incdsi.state import IncDsiState

SEEDS = 16
BLOCK = 64


@dataclass(frozen=True)
class Rivals:
    """The scores of one query (the vector of `seen`) with the documents of `state`.

    seen: a pass over V; it may have seen fewer documents than there are, when some were added since. The documents it
      did see must not change while this object is in use.
    own: the row that is being replaced, no rival; None for a new document.
    """

    state: IncDsiState
    seen: Pass
    own: int | None = None

    def above(self, score: float) -> np.ndarray:
        """All rows that may score above `score`; the rest are proven not to."""
        lengths, scores = self.state.vector_lengths.view, self.seen.scores
        near = score - self.seen.uncertainty * self.state.longest_vector  # few rows come this far
        rows = np.flatnonzero(scores >= np.nextafter(np.float32(near), np.float32(-np.inf)))
        rows = rows[scores[rows] + self.seen.uncertainty * lengths[rows] > score]
        rows = np.concatenate([rows, np.arange(len(scores), len(lengths))])
        return rows if self.own is None else rows[rows != self.own]

    def best(self) -> float:
        """M, the best score of any rival, in float64; 0 in an empty collection, where nothing needs to be beaten."""
        count = len(self.seen.scores)
        later = np.arange(count, len(self.state.vectors))
        best = max(self._best_seen, self._best_of(later if self.own is None else later[later != self.own]))
        return best if best > -np.inf else 0.0

    @cached_property
    def _best_seen(self) -> float:
        scores = self.seen.scores
        if self.own is not None and self.own < len(scores):
            scores = scores.copy()
            scores[self.own] = -np.inf
        if not len(scores):
            return -np.inf
        top = int(scores.argmax())
        certain = float(scores[top]) - self.seen.uncertainty * float(self.state.vector_lengths.view[top])
        rows = self.above(np.nextafter(certain, -np.inf))
        return self._best_of(rows[rows < len(scores)])

    def _best_of(self, rows: np.ndarray) -> float:
        return float(dots(self.state.vectors.view[rows], self.seen.vector).max(initial=-np.inf))

    def seeds(self, count: int = SEEDS) -> np.ndarray:
        """The rows (sorted) of about the best `count` rivals: their queries are the likely conflicts."""
        rows = highest(self.seen.scores, count)
        return np.sort(rows if self.own is None else rows[rows != self.own])


def highest(scores: np.ndarray, count: int) -> np.ndarray:
    """The positions of the `count` highest of `scores` (n), in no order.

    They lie in the blocks with the `count` highest maxima, so that most scores are read once, for their maximum.

    >>> sorted(highest(np.array([1.0, 5.0, 3.0, 4.0], np.float32), 2).tolist())
    [1, 3]
    """
    whole = len(scores) // BLOCK
    if whole > count:
        maxima = scores[: whole * BLOCK].reshape(whole, BLOCK).max(axis=1)
        blocks = np.argpartition(maxima, whole - count)[whole - count :]
        inside = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        rows = np.concatenate([inside, np.arange(whole * BLOCK, len(scores))])
    else:
        rows = np.arange(len(scores))
    if len(rows) > count:
        rows = rows[np.argpartition(scores[rows], len(rows) - count)[len(rows) - count :]]
    return rows
