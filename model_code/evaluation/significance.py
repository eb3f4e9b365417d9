"""Intervals and tests for means and differences over queries.

Every function takes a table with one row per query and one column per system, metric or pair.
Random draws depend on the seed and the number of queries alone, so a column's result does not
depend on the columns beside it.

Bootstrap intervals come from scipy. The randomisation test is our own: 10,000 permutations of 665
queries and 11 columns take 0.6 s as a matrix product, and about 30 s with
`scipy.stats.permutation_test`. Holm's correction is six lines, for which statsmodels would be a new
dependency.

scipy.stats takes a second to import, and a gate without judged queries needs none of it, so it is
imported inside the functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

# Fewer queries give a bootstrap interval that is too narrow.
MIN_BOOTSTRAP_QUERIES = 10
# Fewer trainings say too little about their variance: with two, Student's t has one degree of
# freedom.
MIN_SEEDS = 3
MAX_BLOCK_NUMBERS = 2**22
"""Numbers in memory for one block of random signs."""
MAX_BLOCK_RESAMPLES = 2**19
"""Drawn queries in memory for one block of bootstrap samples, per column."""


def bootstrap_interval(
    values: np.ndarray, samples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of each column's mean over queries.

    Given paired differences, it is the interval of the mean difference. Source: Efron & Tibshirani
    (1993), chapter 13.

    Args:
        values: Scores or differences, (n, c), one row per query.
        samples: Number of bootstrap samples.
        confidence: Coverage, such as 0.95.
        seed: Seed of the draws.

    Returns:
        Lower and upper bounds, (c,) each. A single query gives an interval of one point.
    """
    queries = len(values)
    if queries == 1:
        return values[0].astype(float), values[0].astype(float)
    from scipy import stats

    result = stats.bootstrap(
        (values,),
        np.mean,
        axis=0,
        n_resamples=samples,
        confidence_level=confidence,
        method="percentile",
        batch=max(1, MAX_BLOCK_RESAMPLES // queries),
        rng=np.random.default_rng([seed, queries]),
    )
    return result.confidence_interval.low, result.confidence_interval.high


def queries_for_gain(deviation: float, gain: float, alpha: float, power: float) -> int | None:
    """Return the number of queries with which a paired two-sided test shows a gain.

    This is the normal approximation n = ((z_(1 - alpha / 2) + z_power) deviation / gain)^2, which
    holds for more than a few dozen queries.

    Args:
        deviation: Standard deviation of the paired differences.
        gain: The mean difference that is to be shown.
        alpha: Level of the test.
        power: Probability with which the test shows the gain.

    Returns:
        The number of queries; None if no query differs, so that the deviation is unknown.

    >>> queries_for_gain(deviation=0.2, gain=0.02, alpha=0.05, power=0.8)
    785
    """
    if deviation == 0:
        return None
    from scipy import stats

    quantiles = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return math.ceil((quantiles * deviation / gain) ** 2)


def interval_of_means(
    values: np.ndarray, samples: int, confidence: float, seed: int, lowest: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of each column's mean over queries, for any number of queries.

    With fewer than `MIN_BOOTSTRAP_QUERIES` queries it is Hoeffding's interval (1963), which holds
    for bounded values however few there are. A bootstrap of two equal values would be one point.

    Args:
        values: Scores or differences, (n, c), between `lowest` and 1.
        samples: Number of bootstrap samples.
        confidence: Coverage, such as 0.95.
        seed: Seed of the draws.
        lowest: Lowest possible value: 0 for scores, -1 for differences.

    Returns:
        Lower and upper bounds, (c,) each.

    >>> low, high = interval_of_means(np.ones((4, 1)), 2000, 0.95, seed=0)
    >>> low.round(2).tolist(), high.round(2).tolist()
    ([0.32], [1.0])
    """
    if len(values) >= MIN_BOOTSTRAP_QUERIES:
        return bootstrap_interval(values, samples, confidence, seed)

    mean = values.mean(axis=0)
    scale = math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(values)))
    half_width = (1 - lowest) * scale
    return np.maximum(mean - half_width, lowest), np.minimum(mean + half_width, 1.0)


def interval_over_seeds(
    runs: np.ndarray,
    others: np.ndarray | None = None,
    confidence: float = 0.95,
    lowest: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a system's mean, or of its lead over another, over queries and seeds.

    It says where the mean of another training on other queries would lie. With s trainings, n
    queries and mean scores M_i per training and Q_j per query, the variance of the mean is

        V = V_M + V_Q - V_E,   V_M = var(M) / s,   V_Q = var(Q) / n,   V_E = var(residuals) / (s n)

    The residual variance is in both V_M and V_Q and is counted once. The interval is mean +- t
    sqrt(V) with the Welch-Satterthwaite degrees of freedom V^2 / (V_M^2 / (s - 1) + V_Q^2 / (n -
    1)). A lead has a V_M and V_E of each system that was trained several times, and a V_Q of the
    paired differences. Resampling three seeds instead would cover the truth far too rarely.

    If seeds vary much more than queries (V_M > 5 V_Q) and there are only three, coverage falls to
    about .92 instead of .95.

    Args:
        runs: Scores of each training, (s, n, c), s >= `MIN_SEEDS`.
        others: Scores of the other system on the same queries, (s', n, c). One run is given for a
            system that is not trained and has no variance over seeds.
        confidence: Coverage, such as 0.95.
        lowest: Lowest possible value: 0 for scores, -1 for differences.

    Returns:
        Lower and upper bounds, (c,) each, within [lowest, 1].

    Raises:
        ValueError: If a system has two runs, or none of them has `MIN_SEEDS`.
    """
    from scipy import stats

    systems = [runs]
    if others is not None:
        systems.append(others)
    trained = [system for system in systems if len(system) > 1]
    if not trained or min(map(len, trained)) < MIN_SEEDS:
        raise ValueError(f"an interval over seeds needs {MIN_SEEDS} trainings of each system")

    by_query = runs.mean(axis=0)
    if others is not None:
        by_query = by_query - others.mean(axis=0)
    queries = len(by_query)
    mean = by_query.mean(axis=0)

    query_variance = by_query.var(axis=0, ddof=1) / queries
    variance = query_variance.copy()
    squares = query_variance**2 / (queries - 1)
    for system in trained:
        seeds = len(system)
        seed_variance = system.mean(axis=1).var(axis=0, ddof=1) / seeds
        variance += seed_variance - _residual_variance(system) / (seeds * queries)
        squares += seed_variance**2 / (seeds - 1)

    # The subtraction may not make the estimate smaller than the variance over queries alone.
    variance = np.maximum(variance, query_variance)
    # Equal values have no variance: then the degrees of freedom do not matter.
    freedom = variance**2 / np.maximum(squares, np.finfo(float).tiny)
    freedom = np.maximum(freedom, 1.0)
    half_width = stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(variance)
    return np.maximum(mean - half_width, lowest), np.minimum(mean + half_width, 1.0)


def _residual_variance(runs: np.ndarray) -> np.ndarray:
    """Variance of what neither the training nor the query explains: (s, n, c) -> (c,)."""
    seeds, queries, _ = runs.shape
    by_seed = runs.mean(axis=1, keepdims=True)
    by_query = runs.mean(axis=0, keepdims=True)
    residuals = runs - by_seed - by_query + runs.mean(axis=(0, 1), keepdims=True)
    return (residuals**2).sum(axis=(0, 1)) / ((seeds - 1) * (queries - 1))


def paired_randomisation_test(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Return the two-sided p-value of each column of paired differences (Fisher 1935).

    Under the null hypothesis a query's two scores could be swapped, which flips the sign of its
    difference. The p-value is the share of sign patterns whose mean is at least as large as the
    observed one. If there are at most `permutations` patterns, all 2^n are enumerated and p is
    exact. Otherwise p = (1 + b) / (1 + m) for m random patterns of which b reach the observed mean
    (Phipson & Smyth 2010), so it is never 0. Smucker, Allan & Carterette (2007) recommend the test
    for retrieval.

    Args:
        differences: Paired differences, (n, c), one row per query.
        permutations: Number of random sign patterns.
        seed: Seed of the draws.

    Returns:
        p-values, (c,).
    """
    queries = len(differences)
    observed = np.abs(differences.sum(axis=0))
    # Equal sums may differ in their last bit.
    enough = observed - 1e-12 * np.abs(differences).sum(axis=0)

    is_exact = queries < 63 and 2**queries <= permutations
    if is_exact:
        patterns = np.arange(2**queries)[:, None] >> np.arange(queries) & 1
        return _count_reached(patterns, differences, enough) / 2**queries

    generator = np.random.default_rng([seed, queries])
    reached = np.zeros(differences.shape[1], dtype=np.int64)
    for rows in _block_sizes(permutations, queries):
        patterns = generator.integers(2, size=(rows, queries), dtype=np.int8)
        reached += _count_reached(patterns, differences, enough)
    return (reached + 1) / (permutations + 1)


def _count_reached(patterns: np.ndarray, differences: np.ndarray, enough: np.ndarray) -> np.ndarray:
    """Count the sign patterns under which each column's sum is large enough, (c,).

    Args:
        patterns: Rows of 0 and 1, (rows, n). 1 flips the sign of a difference.
        differences: Paired differences, (n, c).
        enough: Absolute sum that counts, (c,).
    """
    signs = 1.0 - 2.0 * patterns
    return (np.abs(signs @ differences) >= enough).sum(axis=0)


def _block_sizes(rows: int, columns: int) -> Iterator[int]:
    size = max(1, MAX_BLOCK_NUMBERS // max(columns, 1))
    for start in range(0, rows, size):
        yield min(size, rows - start)


def holm(p: np.ndarray) -> np.ndarray:
    """Return the p-values of a family (m,), adjusted by Holm's step-down procedure (1979).

    Comparing them with alpha keeps the chance of any false finding in the family below alpha.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    remaining = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * remaining), 1.0)
    return adjusted
