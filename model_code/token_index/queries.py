"""Queries as weights over token ids, prepared so that their sums are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError

Sparse = tuple[np.ndarray, np.ndarray]
"""A text as different token ids (t,), ascending where it is no query, and their weights (t,), none negative."""


@dataclass(frozen=True)
class Query:
    """`tokens` (t,) int64 and `weights` (t,) float64.

    The weights are whole multiples of 2^(e - 52), where all of them together are less than 2^e. So every sum of them is
    a float64 without rounding, and cannot depend on the order of addition: not on how passages are divided into blocks,
    what else is in a batch, or the order of insertion. A weight moves by at most 2^-53 of the sum.
    """

    tokens: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, sparse: Sparse) -> Query:
        """From token ids and weights; FreshetError if a weight is negative or not finite, or a token stands twice.

        >>> Query.of((np.array([9, 5]), np.array([1.0, 0.5]))).weights.tolist()
        [0.5, 1.0]
        """
        tokens, weights = np.asarray(sparse[0]), np.asarray(sparse[1])
        if tokens.ndim != 1 or tokens.shape != weights.shape:
            raise FreshetError(f"tokens of shape {tokens.shape} and weights of shape {weights.shape} are no query")
        if not (tokens[1:] > tokens[:-1]).all():
            order = tokens.argsort()
            tokens, weights = tokens[order], weights[order]
            if (tokens[1:] == tokens[:-1]).any():
                raise FreshetError("a query names a token twice; add up its weights first")
        weights = weights.astype(np.float64)
        total = float(weights.sum())
        if not (total < math.inf and weights.min(initial=0) >= 0):
            raise FreshetError("a query's weights must be finite and not negative; elu1p gives such")
        return cls(tokens.astype(np.int64), _on_grid(weights, total))


@dataclass(frozen=True)
class QueryBatch:
    """`size` queries in a row: `tokens` (t,), `weights` (t,), and `owners` (t,), the number of each one's query."""

    tokens: np.ndarray
    weights: np.ndarray
    owners: np.ndarray
    size: int

    @classmethod
    def of(cls, queries: Sequence[Query]) -> QueryBatch:
        """All tokens of at least one query."""
        lengths = [len(query.tokens) for query in queries]
        tokens = np.concatenate([query.tokens for query in queries])
        weights = np.concatenate([query.weights for query in queries])
        return cls(tokens, weights, np.repeat(np.arange(len(queries)), lengths), len(queries))


def _on_grid(weights: np.ndarray, total: float) -> np.ndarray:
    unit = 2.0 ** (math.frexp(total)[1] - 52)
    units = weights / unit
    np.rint(units, out=units)
    units *= unit
    return units
