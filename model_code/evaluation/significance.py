"""How sure a mean or a difference over queries is: bootstrap intervals, paired randomisation test,
Holm's correction.

All take columns (one per system, metric or pair) over the same queries at once and draw one set of
resamples for all of them, from (seed, number of queries) alone: a column's result does not depend
on which others are computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

CHUNK = 2**22  # numbers in memory per block of resamples
MIN_BOOTSTRAP_QUERIES = 10  # queries; below, a bootstrap interval is too narrow


def bootstrap_interval(
    values: np.ndarray, samples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of each column's mean over queries (Efron & Tibshirani 1993, ch. 13).

    `values` is (n, c), one row per query; gives lower and upper bounds, (c,) each. Given paired
    differences, it is the interval of the mean difference.
    """
    n = len(values)
    # (samples, c)
    means = np.concatenate([weights @ values / n for weights in _resamples(n, samples, seed)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def interval_of_means(
    values: np.ndarray, samples: int, confidence: float, seed: int, lowest: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """`bootstrap_interval`, or of few queries, where a bootstrap of two equal values would be one
    point, Hoeffding's interval (1963) of values between `lowest` and 1: true of however few.

    >>> [bound.round(2).tolist() for bound in interval_of_means(np.ones((4, 1)), 2000, 0.95, seed=0)]
    [[0.32], [1.0]]
    """
    if len(values) >= MIN_BOOTSTRAP_QUERIES:
        return bootstrap_interval(values, samples, confidence, seed)
    mean, reach = (
        values.mean(axis=0),
        (1 - lowest) * math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(values))),
    )
    return np.maximum(mean - reach, lowest), np.minimum(mean + reach, 1.0)


def bootstrap_over_seeds(
    runs: np.ndarray, others: np.ndarray | None, samples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same interval where seeds are drawn, too: of the mean of `runs` (s, n, c), or of it less
    that of `others`.

    Each resample draws n queries, for both systems the same, and as many seeds as a system has, for
    each its own.
    """
    n = runs.shape[1]
    generator = np.random.default_rng([seed, n, len(runs)])

    def means(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        """weights: (rows, n), how often each query is drawn; values: (s, n, c) -> (rows, c)."""
        of_seeds = weights @ values / n  # (s, rows, c)
        drawn = generator.multinomial(
            len(values), np.full(len(values), 1 / len(values)), size=len(weights)
        )
        return np.einsum("src,rs->rc", of_seeds, drawn / len(values))

    blocks = [
        means(weights, runs) - (0.0 if others is None else means(weights, others))
        for weights in _resamples(n, samples, seed)
    ]
    low, high = np.quantile(
        np.concatenate(blocks), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0
    )
    return low, high


def _resamples(n: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of n queries is drawn in each bootstrap sample, in blocks of (rows, n)."""
    generator = np.random.default_rng([seed, n])
    for rows in _blocks(samples, n):
        drawn = generator.integers(n, size=(rows, n))
        yield np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(float)


def paired_randomisation_test(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Two-sided p per column of (n, c) paired differences: how often random signs give as large a
    mean (Fisher 1935).

    Under the null hypothesis a query's two scores could be swapped, which flips the sign of its
    difference. If all 2^n sign patterns are at most `permutations`, they are enumerated and p is
    exact; otherwise p = (1 + b) / (1 + m) for m random patterns of which b reach the observed mean
    (Phipson & Smyth 2010), never 0. Recommended for retrieval by Smucker, Allan & Carterette
    (2007).
    """
    n = len(differences)
    exact = n < 63 and 2**n <= permutations
    observed = np.abs(differences.sum(axis=0))
    # equal sums may differ in their last bit
    enough = observed - 1e-12 * np.abs(differences).sum(axis=0)
    chance = np.random.default_rng([seed, n])
    coins = (chance.integers(2, size=(rows, n), dtype=np.int8) for rows in _blocks(permutations, n))
    patterns = [np.arange(2**n)[:, None] >> np.arange(n) & 1] if exact else coins
    reached = sum(
        (np.abs((1.0 - 2.0 * bits) @ differences) >= enough).sum(axis=0) for bits in patterns
    )
    return reached / 2**n if exact else (reached + 1) / (permutations + 1)


def _blocks(rows: int, n: int) -> Iterator[int]:
    size = max(1, CHUNK // max(n, 1))
    yield from (min(size, rows - start) for start in range(0, rows, size))


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's (1979) step-down adjusted p-values of a family (m,): comparing them with alpha keeps
    the chance of any false finding in the family below alpha.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted
