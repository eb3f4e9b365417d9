"""Hard negatives: passages that a scorer ranks high for the query although they are not known to answer it.

Ranks are counted among the passages of documents that are not known to answer the query: rank 0 is the best of those.
Of equal scores the passage with the lower number ranks first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model_code.training.negatives.base import Drawing, sample


class Candidates(NamedTuple):
    """What a scorer ranks high for one pair's query."""

    passages: np.ndarray  # (n,) int64, best first
    scores: np.ndarray  # (n,) float32, descending
    positive: float  # the score of the pair's own passage


class RankedNegatives(Drawing):
    """Draws from the ranks `negatives_skip` to `negatives_skip + negatives_depth - 1`, each as likely as another.

    Of these, passages are dropped that score above the positive's score minus `negatives_margin` (they may well answer
    the query, though nobody said so), those that hold an answer of the query, where the data names answers, and, with
    `negatives_outside_leaf`, those in the positive's leaf. A query of which too few are left gets fewer.
    """

    def candidates(self, pair: int) -> Candidates:
        """The passages at those ranks, before any is dropped; fewer where the scorer finds fewer."""
        raise NotImplementedError

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        passages, scores, positive = self.candidates(pair)
        if self.settings.negatives_margin is not None:
            passages = passages[scores <= positive - self.settings.negatives_margin]
        banned = banned.union(self._leaf(pair).tolist())
        return sample(passages, self.settings.negatives_per_query, banned, rng, self._holds(pair))


def best_unknown(scores: np.ndarray, passages: np.ndarray, known: np.ndarray, skip: int, depth: int) -> np.ndarray:
    """Positions in `passages` (n,) of those at the ranks skip to skip + depth - 1 once the known ones are left out.

    >>> best_unknown(np.array([.9, .8, .7, .8]), np.array([4, 3, 2, 1]), known=np.array([4]), skip=1, depth=2).tolist()
    [1, 2]
    """
    unknown = np.flatnonzero(~np.isin(passages, known))
    order = np.lexsort((passages[unknown], -scores[unknown]))
    return unknown[order[skip : skip + depth]]
