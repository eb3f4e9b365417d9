"""Inner products of rows, exact enough that the order of rows or of additions cannot show in them."""

from __future__ import annotations

import numpy as np

SAMPLE = 2048  # documents and queries from which the deviation of scores is estimated, evenly spread
BLOCK = 8192


def dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products (n) of the rows of `a` (n, H) with those of `b` (n, H) or with the one vector `b` (H), in float64.

    Each depends on its own two rows only, to the last bit; a matrix product's rounding depends on its shape.
    """
    if len(a) > BLOCK:  # in parts, or the products would take twice the memory of `a`
        parts = [slice(start, start + BLOCK) for start in range(0, len(a), BLOCK)]
        return np.concatenate([dots(a[part], b if b.ndim == 1 else b[part]) for part in parts])
    return (a.astype(np.float64) * b.astype(np.float64)).sum(axis=1)


def lengths(rows: np.ndarray) -> np.ndarray:
    """The lengths (n) of `rows` (n, H), in float64."""
    return np.sqrt(dots(rows, rows))


def deviation(vectors: np.ndarray, queries: np.ndarray) -> float:
    """The standard deviation of the scores of up to 2,048 queries with up to 2,048 documents; 0 for less than 2.

    >>> deviation(np.array([[1.0], [3.0]]), np.array([[1.0], [1.0]]))
    1.0
    """
    if len(vectors) < 2:
        return 0.0
    spread = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    return float((queries[spread].astype(np.float64) @ vectors[spread].astype(np.float64).T).std())
