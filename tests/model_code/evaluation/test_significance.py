"""Guards the statistics: against scipy, against exact enumeration, and in how often they err on
data without effect.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from model_code.evaluation.significance import (
    bootstrap_interval,
    bootstrap_over_seeds,
    holm,
    paired_randomisation_test,
)


def mean(values, axis):
    return np.mean(values, axis=axis)


def test_bootstrap_interval_is_scipys():
    values = np.random.default_rng(0).beta(2, 3, size=(150, 2))
    low, high = bootstrap_interval(values, samples=20_000, confidence=0.9, seed=1)
    for column in range(2):
        theirs = stats.bootstrap(
            (values[:, column],),
            mean,
            n_resamples=20_000,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(2),
        ).confidence_interval
        assert (low[column], high[column]) == pytest.approx(tuple(theirs), abs=0.002)


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    values = generator.normal(0.3, 1.0, size=(80, 400))  # 400 experiments of 80 queries
    low, high = bootstrap_interval(values, samples=1000, confidence=0.9, seed=0)
    assert 0.85 <= np.mean((low <= 0.3) & (high >= 0.3)) <= 0.95
    low, high = bootstrap_interval(np.full((30, 1), 0.25), samples=200, confidence=0.95, seed=0)
    assert (low[0], high[0]) == pytest.approx((0.25, 0.25)), "that of equal values is a point"


def test_randomisation_test_of_few_queries_is_the_exact_enumeration():
    differences = np.random.default_rng(4).normal(0.4, 1.0, size=9).round(2)
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=9)]
    reached = [total >= abs(differences.sum()) - 1e-12 for total in sums]
    p = paired_randomisation_test(differences[:, None], permutations=1000, seed=0)
    assert p[0] == sum(reached) / 2**9


def test_random_signs_approach_the_exact_p():
    differences = np.random.default_rng(5).normal(0.35, 1.0, size=(12, 3))
    exact = paired_randomisation_test(differences, permutations=2**12, seed=0)
    sampled = paired_randomisation_test(differences, permutations=2**12 - 1, seed=0)
    assert sampled == pytest.approx(exact, abs=0.03)
    assert (sampled != exact).any()


def test_randomisation_test_is_scipys_permutation_test():
    generator = np.random.default_rng(6)
    ours, theirs = generator.uniform(size=60), generator.uniform(size=60)
    ours = np.clip(ours + 0.1, 0, 1)
    expected = stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        alternative="two-sided",
        rng=np.random.default_rng(7),
    ).pvalue
    p = paired_randomisation_test((ours - theirs)[:, None], permutations=20_000, seed=8)
    assert p[0] == pytest.approx(expected, abs=0.012)


def test_p_is_uniform_without_effect_and_small_with_one():
    generator = np.random.default_rng(9)
    null = paired_randomisation_test(generator.normal(size=(50, 600)), permutations=1000, seed=0)
    assert 0.03 <= np.mean(null < 0.05) <= 0.075
    strong = paired_randomisation_test(
        generator.normal(1.0, 1.0, size=(50, 1)), permutations=1000, seed=0
    )
    assert strong[0] == 1 / 1001


def test_no_difference_at_all_is_p_one_and_signs_do_not_matter():
    assert paired_randomisation_test(np.zeros((40, 1)), permutations=500, seed=0)[0] == 1.0
    differences = np.random.default_rng(10).integers(-1, 2, size=(40, 4)).astype(float)
    p = paired_randomisation_test(differences, permutations=500, seed=0)
    assert (p == paired_randomisation_test(-differences, permutations=500, seed=0)).all()


def test_rounding_does_not_break_ties_between_equal_sums():
    """Seven differences of .1 sum to different last bits in different orders; all-plus must count
    as reached.
    """
    differences = np.array([0.1, 0.1, 0.1, 0.7, 0.7, -0.1, -0.1])[:, None]
    exact = paired_randomisation_test((differences * 10).round(), permutations=1000, seed=0)
    assert paired_randomisation_test(differences, permutations=1000, seed=0)[0] == exact[0]


def test_a_column_does_not_depend_on_its_neighbours_or_on_blocks(monkeypatch):
    values = np.random.default_rng(11).normal(0.1, 1, size=(70, 6))
    together = [
        *bootstrap_interval(values, 300, 0.95, 5),
        paired_randomisation_test(values, 300, 5),
    ]
    monkeypatch.setattr("model_code.evaluation.significance.CHUNK", 70 * 300)
    alone = [
        *bootstrap_interval(values[:, 2:3], 300, 0.95, 5),
        paired_randomisation_test(values[:, 2:3], 300, 5),
    ]
    assert [column[2] for column in together] == pytest.approx(
        [column[0] for column in alone], abs=1e-12
    )


def test_blocks_cover_every_resample(monkeypatch):
    monkeypatch.setattr("model_code.evaluation.significance.CHUNK", 20 * 7)
    # every pattern reaches a difference of zero
    assert paired_randomisation_test(np.zeros((20, 1)), 500, 0)[0] == 1.0
    values = np.random.default_rng(12).normal(0.3, 1, size=(20, 1))
    low, high = bootstrap_interval(values, 2000, 0.95, 0)
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * values.std() / np.sqrt(20), rel=0.1)


def test_holm_by_its_definition():
    p = np.random.default_rng(13).uniform(size=7) ** 3
    order = sorted(range(7), key=lambda i: p[i])
    expected = np.empty(7)
    for position, i in enumerate(order):
        expected[i] = min(1.0, max(p[order[j]] * (7 - j) for j in range(position + 1)))
    assert holm(p) == pytest.approx(expected)
    assert (holm(p) >= p).all()
    assert holm(np.array([0.04])).tolist() == [0.04]
    assert holm(np.array([])).tolist() == []


def test_intervals_over_seeds_are_those_of_a_plain_loop():
    generator = np.random.default_rng(5)
    ours, theirs = (
        generator.normal(0.5, 0.3, size=(3, 60, 1)),
        generator.normal(0.4, 0.3, size=(2, 60, 1)),
    )
    ours += np.array([-0.1, 0.0, 0.1])[:, None, None]
    low, high = bootstrap_over_seeds(ours, theirs, 10_000, 0.9, seed=1)
    means = []
    for _ in range(10_000):
        queries = generator.integers(60, size=60)
        first, second = ours[generator.integers(3, size=3)], theirs[generator.integers(2, size=2)]
        means.append(first[:, queries].mean() - second[:, queries].mean())
    assert (low[0], high[0]) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])), abs=0.01)
    fixed = bootstrap_interval(ours.mean(axis=0) - theirs.mean(axis=0), 10_000, 0.9, seed=1)
    assert high[0] - low[0] > 1.2 * (fixed[1] - fixed[0])[0]
