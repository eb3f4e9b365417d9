"""Test statistics: against scipy, exact enumeration, and error rates on data without effect."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from model_code.evaluation.significance import (
    bootstrap_interval,
    holm,
    interval_over_seeds,
    paired_randomisation_test,
)


def mean(values, axis):
    return np.mean(values, axis=axis)


def test_bootstrap_interval_is_scipys():
    values = np.random.default_rng(0).beta(2, 3, size=(150, 2))

    low, high = bootstrap_interval(values, samples=20_000, confidence=0.9, seed=1)

    for column in range(2):
        expected = stats.bootstrap(
            (values[:, column],),
            mean,
            n_resamples=20_000,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(2),
        ).confidence_interval
        assert low[column] == pytest.approx(expected.low, abs=0.002)
        assert high[column] == pytest.approx(expected.high, abs=0.002)


def test_bootstrap_interval_covers_the_truth():
    # 400 experiments of 80 queries, whose true mean is .3.
    values = np.random.default_rng(3).normal(0.3, 1.0, size=(80, 400))

    low, high = bootstrap_interval(values, samples=1000, confidence=0.9, seed=0)

    assert 0.85 <= np.mean((low <= 0.3) & (high >= 0.3)) <= 0.95


def test_bootstrap_interval_of_equal_values_is_a_point():
    values = np.full((30, 1), 0.25)

    low, high = bootstrap_interval(values, samples=200, confidence=0.95, seed=0)

    assert low[0] == pytest.approx(0.25)
    assert high[0] == pytest.approx(0.25)


def test_randomisation_test_enumerates_few_queries():
    differences = np.random.default_rng(4).normal(0.4, 1.0, size=9).round(2)

    p = paired_randomisation_test(differences[:, None], permutations=1000, seed=0)

    observed = abs(differences.sum())
    extreme_count = 0
    for signs in product((1, -1), repeat=9):
        if abs(np.dot(signs, differences)) >= observed - 1e-12:
            extreme_count += 1
    assert p[0] == extreme_count / 2**9


def test_random_signs_approach_the_exact_p():
    differences = np.random.default_rng(5).normal(0.35, 1.0, size=(12, 3))

    exact = paired_randomisation_test(differences, permutations=2**12, seed=0)
    sampled = paired_randomisation_test(differences, permutations=2**12 - 1, seed=0)

    assert sampled == pytest.approx(exact, abs=0.03)
    assert (sampled != exact).any()


def mean_difference(left, right, axis):
    return np.mean(left - right, axis=axis)


def test_randomisation_test_is_scipys_permutation_test():
    generator = np.random.default_rng(6)
    left = np.clip(generator.uniform(size=60) + 0.1, 0, 1)
    right = generator.uniform(size=60)

    p = paired_randomisation_test((left - right)[:, None], permutations=20_000, seed=8)

    expected = stats.permutation_test(
        (left, right),
        mean_difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        alternative="two-sided",
        rng=np.random.default_rng(7),
    ).pvalue
    assert p[0] == pytest.approx(expected, abs=0.012)


def test_p_is_uniform_without_effect():
    differences = np.random.default_rng(9).normal(size=(50, 600))

    p = paired_randomisation_test(differences, permutations=1000, seed=0)

    assert 0.03 <= np.mean(p < 0.05) <= 0.075


def test_strong_effect_has_the_smallest_p():
    differences = np.random.default_rng(9).normal(1.0, 1.0, size=(50, 1))

    p = paired_randomisation_test(differences, permutations=1000, seed=0)

    assert p[0] == 1 / 1001


def test_no_difference_gives_p_one():
    p = paired_randomisation_test(np.zeros((40, 1)), permutations=500, seed=0)

    assert p[0] == 1.0


def test_p_does_not_depend_on_the_sign():
    differences = np.random.default_rng(10).integers(-1, 2, size=(40, 4)).astype(float)

    p = paired_randomisation_test(differences, permutations=500, seed=0)

    assert (p == paired_randomisation_test(-differences, permutations=500, seed=0)).all()


def test_rounding_does_not_break_ties_between_equal_sums():
    """Sums of the same numbers in another order differ in their last bits, but are equal."""
    differences = np.array([0.1, 0.1, 0.1, 0.7, 0.7, -0.1, -0.1])[:, None]
    integers = (differences * 10).round()

    p = paired_randomisation_test(differences, permutations=1000, seed=0)

    assert p[0] == paired_randomisation_test(integers, permutations=1000, seed=0)[0]


def test_columns_do_not_depend_on_each_other(monkeypatch):
    values = np.random.default_rng(11).normal(0.1, 1, size=(70, 6))
    column = values[:, 2:3]
    lows, highs = bootstrap_interval(values, 300, 0.95, 5)
    p = paired_randomisation_test(values, 300, 5)

    # One column fits into a block, six do not.
    monkeypatch.setattr("model_code.evaluation.significance.MAX_BLOCK_NUMBERS", 70 * 300)
    column_low, column_high = bootstrap_interval(column, 300, 0.95, 5)
    column_p = paired_randomisation_test(column, 300, 5)

    assert lows[2] == pytest.approx(column_low[0], abs=1e-12)
    assert highs[2] == pytest.approx(column_high[0], abs=1e-12)
    assert p[2] == pytest.approx(column_p[0], abs=1e-12)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("model_code.evaluation.significance.MAX_BLOCK_NUMBERS", 20 * 7)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_cover_every_permutation():
    p = paired_randomisation_test(np.zeros((20, 1)), 500, 0)

    # Every permutation reaches a difference of zero.
    assert p[0] == 1.0


@pytest.mark.usefixtures("small_blocks")
def test_blocks_cover_every_resample():
    values = np.random.default_rng(12).normal(0.3, 1, size=(20, 1))

    low, high = bootstrap_interval(values, 2000, 0.95, 0)

    expected_width = 2 * 1.96 * values.std() / np.sqrt(20)
    assert high[0] - low[0] == pytest.approx(expected_width, rel=0.1)


def test_holm_equals_its_definition():
    p = np.random.default_rng(13).uniform(size=7) ** 3

    corrected = holm(p)

    order = np.argsort(p)
    expected = np.empty(7)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, p[i] * (7 - rank))
        expected[i] = min(1.0, largest)
    assert corrected == pytest.approx(expected)
    assert (corrected >= p).all()


def test_holm_of_one_p_changes_nothing():
    assert holm(np.array([0.04])).tolist() == [0.04]


def test_holm_of_no_p_is_empty():
    assert holm(np.array([])).tolist() == []


def seeded_scores(generator, seeds, queries, experiments, seed_deviation):
    """Return scores (seeds, queries, experiments) with a known mean of zero.

    Queries differ by .3, as nDCG does. The residual standard deviation is .15.
    """
    by_seed = generator.normal(0, seed_deviation, size=(seeds, 1, experiments))
    by_query = generator.normal(0, 0.3, size=(1, queries, experiments))
    return by_seed + by_query + generator.normal(0, 0.15, size=(seeds, queries, experiments))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("seed_deviation", [0.0, 0.01, 0.02])
def test_interval_over_seeds_covers_the_truth(seeds, seed_deviation):
    generator = np.random.default_rng([seeds, int(1000 * seed_deviation)])
    runs = seeded_scores(generator, seeds, 300, 4000, seed_deviation)

    low, high = interval_over_seeds(runs, confidence=0.95, lowest=-1.0)

    assert 0.93 <= np.mean((low <= 0) & (high >= 0)) <= 0.97


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("rival_seeds", [1, 3, 5])
def test_interval_of_a_lead_covers_the_truth(seeds, rival_seeds):
    """Queries are as hard for both systems. One run is a system that is not trained."""
    generator = np.random.default_rng([seeds, rival_seeds])
    experiments = 4000
    by_query = generator.normal(0, 0.3, size=(1, 300, experiments))
    runs = by_query + seeded_scores(generator, seeds, 300, experiments, 0.01) / 2
    rival_deviation = 0.01 if rival_seeds > 1 else 0.0
    rival_scores = seeded_scores(generator, rival_seeds, 300, experiments, rival_deviation)
    rival_runs = by_query + rival_scores / 2

    low, high = interval_over_seeds(runs, rival_runs, confidence=0.95, lowest=-1.0)

    assert 0.93 <= np.mean((low <= 0) & (high >= 0)) <= 0.97


def test_resampling_three_seeds_covers_too_rarely():
    """Show why seeds are not resampled: resample seeds and queries in a plain loop."""
    generator = np.random.default_rng(0)
    runs = seeded_scores(generator, 3, 100, 300, 0.2)

    means = []
    for _ in range(400):
        resampled_seeds = runs[generator.integers(3, size=3)]
        resampled = resampled_seeds[:, generator.integers(100, size=100)]
        means.append(resampled.mean(axis=(0, 1)))
    resampled_low, resampled_high = np.quantile(means, [0.025, 0.975], axis=0)
    low, high = interval_over_seeds(runs, confidence=0.95, lowest=-10.0)

    assert np.mean((resampled_low <= 0) & (resampled_high >= 0)) < 0.8
    assert np.mean((low <= 0) & (high >= 0)) > 0.9


def test_interval_over_equal_seeds_is_that_over_queries():
    values = np.random.default_rng(1).normal(0.5, 0.1, size=(200, 2))
    runs = np.stack([values, values, values])

    low, high = interval_over_seeds(runs, confidence=0.9)

    half_width = stats.t.ppf(0.95, 199) * values.std(axis=0, ddof=1) / np.sqrt(200)
    assert high - low == pytest.approx(2 * half_width, rel=1e-6)


@pytest.mark.parametrize(("seeds", "rival_seeds"), [(1, None), (2, None), (2, 3), (3, 2), (1, 1)])
def test_interval_over_seeds_needs_three_trainings(seeds, rival_seeds):
    runs = np.full((seeds, 20, 1), 0.5)
    rival_runs = None
    if rival_seeds is not None:
        rival_runs = np.full((rival_seeds, 20, 1), 0.5)

    with pytest.raises(ValueError, match="needs 3 trainings"):
        interval_over_seeds(runs, rival_runs)


def test_interval_over_seeds_stays_within_the_metric():
    runs = np.random.default_rng(2).uniform(0, 1, size=(3, 12, 1)) > 0.9

    low, high = interval_over_seeds(runs.astype(float))

    assert low[0] >= 0
    assert high[0] <= 1


def test_interval_of_one_query_is_a_point():
    low, high = bootstrap_interval(np.array([[0.25, 1.0]]), 200, 0.95, 0)

    assert low.tolist() == [0.25, 1.0]
    assert high.tolist() == [0.25, 1.0]
