"""Intervals and tests for means and differences over queries.

The functions take tables with one row per query and one column per system, metric or pair. Random
draws depend only on the seed and the number of queries. So the result of a column does not depend
on other columns.

Bootstrap intervals are computed by scipy. The randomisation test is our own code, because it is
faster. For 10,000 permutations of 665 queries and 11 columns, its matrix product takes 0.6 s, and
`scipy.stats.permutation_test` takes about 30 s. Holm's correction is six lines, which are not worth
a new dependency on statsmodels.

The import of scipy.stats takes a second, and not every caller needs it. So the functions import it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

# Smallest number of queries for a bootstrap interval. With fewer, the interval is too narrow.
MIN_BOOTSTRAP_QUERIES = 10
# Smallest number of trainings from which their variance is estimated. With two, Student's t has
# only one degree of freedom.
MIN_SEEDS = 3
MAX_BLOCK_NUMBERS = 2**22
"""Largest number of random signs that the randomisation test keeps in memory at a time."""
MAX_BLOCK_RESAMPLES = 2**19
"""Largest number of drawn queries in memory at a time, per column of a bootstrap."""


def bootstrap_interval(
    values: np.ndarray, samples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of each column's mean over queries.

    If the values are paired differences, it is the interval of the mean difference. Source: Efron &
    Tibshirani (1993), chapter 13.

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
    """Return the number of queries with which a paired two-sided test detects a gain.

    This is the normal approximation n = ((z_(1 - alpha / 2) + z_power) deviation / gain)^2, which
    holds for more than a few dozen queries.

    Args:
        deviation: Standard deviation of the paired differences.
        gain: True mean difference to detect.
        alpha: Level of the test.
        power: Probability with which the test detects the gain.

    Returns:
        The number of queries. None if the deviation is 0: no query differs, so that the real
        deviation is unknown.

    >>> queries_for_gain(deviation=0.2, gain=0.02, alpha=0.05, power=0.8)
    785
    """
    if deviation == 0:
        return None
    from scipy import stats

    quantiles = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return math.ceil((quantiles * deviation / gain) ** 2)


def queries_for_significance(alpha: float) -> int:
    """Return the smallest number of queries with which the paired test can give p < alpha.

    `paired_randomisation_test` is exact for few queries. Its smallest p is 2 / 2^n for n queries,
    if all differences have the same sign.

    Args:
        alpha: Level of the test.

    >>> queries_for_significance(alpha=0.05)
    6
    """
    return math.floor(1 - math.log2(alpha)) + 1


def queries_to_rule_out_loss(
    deviation: float, margin: float, alpha: float, power: float
) -> int | None:
    """Return the number of queries with which an interval rules out a loss beyond a margin.

    The interval's lower bound is one-sided at alpha, and the true difference is 0. This is the
    normal approximation n = ((z_(1 - alpha) + z_power) deviation / margin)^2.

    Args:
        deviation: Standard deviation of the paired differences.
        margin: Loss that must be ruled out, above 0.
        alpha: One-sided level of the bound.
        power: Probability with which the bound is above -margin.

    Returns:
        The number of queries. None if the deviation is 0; see `queries_for_gain`.

    >>> queries_to_rule_out_loss(deviation=0.15, margin=0.02, alpha=0.05, power=0.5)
    153
    """
    if deviation == 0:
        return None
    from scipy import stats

    quantiles = stats.norm.ppf(1 - alpha) + stats.norm.ppf(power)
    return math.ceil((quantiles * deviation / margin) ** 2)


def interval_of_means(
    values: np.ndarray, samples: int, confidence: float, seed: int, lowest: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of each column's mean over queries, for any number of queries.

    With fewer than `MIN_BOOTSTRAP_QUERIES` queries it is Hoeffding's interval (1963), which holds
    for any number of bounded values. The bootstrap interval of two equal values would be one point.

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

    # Hoeffding's interval holds for values in a range of length 1. It is scaled to the actual
    # range.
    mean = values.mean(axis=0)
    unit_half_width = math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(values)))
    half_width = (1 - lowest) * unit_half_width
    return np.maximum(mean - half_width, lowest), np.minimum(mean + half_width, 1.0)


def interval_over_seeds(
    runs: np.ndarray,
    others: np.ndarray | None = None,
    confidence: float = 0.95,
    lowest: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a mean score that covers the variance of queries and of trainings.

    If `others` is given, it is the interval of the mean difference from another system. The
    interval shows the range in which the mean of another training on other queries would be. With s
    trainings, n queries and mean scores M_i per training and Q_j per query, the variance of the
    mean is

        V = V_M + V_Q - V_E,   V_M = var(M) / s,   V_Q = var(Q) / n,   V_E = var(residuals) / (s n)

    Both V_M and V_Q contain the residual variance, so V_E is subtracted once. The interval is mean
    +- t sqrt(V) with the Welch-Satterthwaite degrees of freedom V^2 / (V_M^2 / (s - 1) + V_Q^2 / (n
    - 1)). For a lead, V_M and V_E are added for each system that was trained several times, and V_Q
    is that of the paired differences. A bootstrap of only three seeds would contain the true mean
    far too rarely.

    With three seeds that vary much more than queries (V_M > 5 V_Q), the coverage falls from .95 to
    about .92.

    Args:
        runs: Scores of each training, (s, n, c), s >= `MIN_SEEDS`.
        others: Scores of the other system on the same queries, (s', n, c). s' is 1 for a system
            that is not trained, which has no variance over seeds.
        confidence: Coverage, such as 0.95.
        lowest: Lowest possible value: 0 for scores, -1 for differences.

    Returns:
        Lower and upper bounds, (c,) each, within [lowest, 1].

    Raises:
        ValueError: If no system has several runs, or one has between 2 and `MIN_SEEDS` - 1 runs.
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

    # The estimate must not be smaller than the variance over queries alone, in spite of the
    # subtraction.
    variance = np.maximum(variance, query_variance)
    # If all values are equal, the variance is 0. The tiny number then only avoids a division by 0.
    freedom = variance**2 / np.maximum(squares, np.finfo(float).tiny)
    freedom = np.maximum(freedom, 1.0)
    half_width = stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(variance)
    return np.maximum(mean - half_width, lowest), np.minimum(mean + half_width, 1.0)


def _residual_variance(runs: np.ndarray) -> np.ndarray:
    """Return the residual variance of the scores in each column, (c,).

    A score depends on the training, because some trainings are better than others. It also depends
    on the query, because some queries are harder than others. Both effects are subtracted from the
    scores. The variance of the rest is the residual variance.

    Args:
        runs: Scores of s trainings for n queries in c columns, (s, n, c). A column is a metric or
            another score that is evaluated by itself.
    """
    seeds, queries, _ = runs.shape
    by_seed = runs.mean(axis=1, keepdims=True)
    by_query = runs.mean(axis=0, keepdims=True)
    residuals = runs - by_seed - by_query + runs.mean(axis=(0, 1), keepdims=True)
    return (residuals**2).sum(axis=(0, 1)) / ((seeds - 1) * (queries - 1))


def paired_randomisation_test(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Return the two-sided p-value of each column of paired differences (Fisher 1935).

    Under the null hypothesis, the two scores of a query may be swapped, which changes the sign of
    its difference. The p-value is the share of sign patterns whose absolute mean is at least the
    observed one. If there are at most `permutations` patterns, all 2^n are enumerated, and p is
    exact. Otherwise m random patterns are drawn. If b of them reach the observed mean, p is
    (1 + b) / (1 + m), which is never 0 (Phipson & Smyth 2010). Smucker, Allan & Carterette (2007)
    recommend this test for retrieval.

    Args:
        differences: Paired differences, (n, c), one row per query.
        permutations: Number of random sign patterns.
        seed: Seed of the draws.

    Returns:
        p-values, (c,).
    """
    queries = len(differences)
    observed = np.abs(differences.sum(axis=0))
    # Rounding may change sums that are equal, so the threshold is a little lower.
    thresholds = observed - 1e-12 * np.abs(differences).sum(axis=0)

    # Numbers of 63 bits and more do not fit into int64.
    can_enumerate = queries < 63 and 2**queries <= permutations
    if can_enumerate:
        # Enumerate all sign patterns: row i holds the bits of the number i.
        patterns = np.arange(2**queries)[:, None] >> np.arange(queries) & 1
        return _count_reached(patterns, differences, thresholds) / 2**queries

    generator = np.random.default_rng([seed, queries])
    reached = np.zeros(differences.shape[1], dtype=np.int64)
    for rows in _block_sizes(permutations, queries):
        patterns = generator.integers(2, size=(rows, queries), dtype=np.int8)
        reached += _count_reached(patterns, differences, thresholds)
    return (reached + 1) / (permutations + 1)


def _count_reached(
    patterns: np.ndarray, differences: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """Count the sign patterns for which the absolute sum of a column reaches a threshold, (c,).

    Args:
        patterns: Rows of 0 and 1, (rows, n). 1 flips the sign of a difference.
        differences: Paired differences, (n, c).
        thresholds: Threshold of each column, (c,).
    """
    signs = 1.0 - 2.0 * patterns
    return (np.abs(signs @ differences) >= thresholds).sum(axis=0)


def _block_sizes(rows: int, columns: int) -> Iterator[int]:
    """Yield the number of rows of each block of a large table, which is processed in blocks.

    A block has at most `MAX_BLOCK_NUMBERS` numbers, so that little memory is needed.

    Args:
        rows: Number of rows of the whole table.
        columns: Number of columns.
    """
    rows_per_block = max(1, MAX_BLOCK_NUMBERS // max(columns, 1))
    for start in range(0, rows, rows_per_block):
        yield min(rows_per_block, rows - start)


def holm(p: np.ndarray) -> np.ndarray:
    """Return the p-values of a family (m,), adjusted by Holm's step-down procedure (1979).

    If they are compared with alpha, the probability of any false finding in the family is at most
    alpha.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    # The smallest of m p-values is multiplied by m, the next one by m - 1, and so on. No adjusted
    # value may be below that of a smaller p-value.
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted
