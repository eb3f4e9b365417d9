"""The weights of terms: what a term adds to the BM25 score of each passage, and their cache."""

from __future__ import annotations

import math
from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

import numpy as np

# Share of all passages that contain a term, from which the term is common. The weights of a common
# term are stored for all passages, since adding a whole array is faster.
MIN_COMMON_SHARE = 1 / 8


class TermWeights(NamedTuple):
    """The contribution of a term to the score of each passage that contains it.

    Attributes:
        rows: Passages, counted through all segments, shape (p,), int32. None for a common term;
            see `MIN_COMMON_SHARE`.
        weights: Contribution for each of `rows`, shape (p,). For a common term, the contribution
            for every passage, shape (n,), because adding a whole array is faster.
    """

    rows: np.ndarray | None
    weights: np.ndarray

    @property
    def size(self) -> int:
        """Size of the arrays in bytes, by which the cache of weights is limited."""
        if self.rows is None:
            return self.weights.nbytes
        return self.weights.nbytes + self.rows.nbytes


class WeightCache:
    """The weights of the terms that were searched last, up to a size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._weights_of_term: OrderedDict[str, TermWeights] = OrderedDict()
        # Threads share the cache. The lock keeps them from counting the size of an entry twice.
        self._lock = Lock()

    def get(self, term: str) -> TermWeights | None:
        """Return the weights of a term, or None if they are not cached."""
        with self._lock:
            weights = self._weights_of_term.get(term)
            if weights is not None:
                self._weights_of_term.move_to_end(term)
            return weights

    def put(self, term: str, weights: TermWeights) -> None:
        """Keep the weights of a term, and forget those that were not used for longest."""
        with self._lock:
            if term in self._weights_of_term:
                return
            self._weights_of_term[term] = weights
            self._bytes += weights.size
            while self._bytes > self._max_bytes:
                _, oldest = self._weights_of_term.popitem(last=False)
                self._bytes -= oldest.size


def inverse_document_frequency(containing: int, passages: int) -> float:
    """Return idf(t) for a term that occurs in `containing` of `passages` passages."""
    return math.log(1 + (passages - containing + 0.5) / (containing + 0.5))
