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
        theirs = stats.bootstrap(
            (values[:, column],),
            mean,
            n_resamples=20_000,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(2),
        ).confidence_interval
        assert (low[column], high[column]) == pytest.approx(tuple(theirs), abs=0.002)


def test_bootstrap_interval_covers_the_truth():
    generator = np.random.default_rng(3)
    values = generator.normal(0.3, 1.0, size=(80, 400))  # 400 experiments of 80 queries
    low, high = bootstrap_interval(values, samples=1000, confidence=0.9, seed=0)
    assert 0.85 <= np.mean((low <= 0.3) & (high >= 0.3)) <= 0.95
    low, high = bootstrap_interval(np.full((30, 1), 0.25), samples=200, confidence=0.95, seed=0)
    assert (low[0], high[0]) == pytest.approx((0.25, 0.25)), "that of equal values is a point"


def test_randomisation_test_enumerates_few_queries():
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


def test_p_is_uniform_without_effect():
    generator = np.random.default_rng(9)
    null = paired_randomisation_test(generator.normal(size=(50, 600)), permutations=1000, seed=0)
    assert 0.03 <= np.mean(null < 0.05) <= 0.075
    strong = paired_randomisation_test(
        generator.normal(1.0, 1.0, size=(50, 1)), permutations=1000, seed=0
    )
    assert strong[0] == 1 / 1001


def test_no_difference_gives_p_one():
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


def test_columns_do_not_depend_on_each_other(monkeypatch):
    values = np.random.default_rng(11).normal(0.1, 1, size=(70, 6))
    together = [
        *bootstrap_interval(values, 300, 0.95, 5),
        paired_randomisation_test(values, 300, 5),
    ]
    monkeypatch.setattr("model_code.evaluation.significance.MAX_BLOCK_NUMBERS", 70 * 300)
    alone = [
        *bootstrap_interval(values[:, 2:3], 300, 0.95, 5),
        paired_randomisation_test(values[:, 2:3], 300, 5),
    ]
    assert [column[2] for column in together] == pytest.approx(
        [column[0] for column in alone], abs=1e-12
    )


def test_blocks_cover_every_resample(monkeypatch):
    monkeypatch.setattr("model_code.evaluation.significance.MAX_BLOCK_NUMBERS", 20 * 7)
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


def seeded_scores(generator, seeds, queries, experiments, seed_deviation):
    """Scores (seeds, queries, experiments) with a known mean of zero.

    Queries differ by .3, as nDCG does, what neither query nor seed explains by .15.
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
@pytest.mark.parametrize("others", [1, 3, 5])
def test_interval_of_a_lead_covers_the_truth(seeds, others):
    """Queries are as hard for both systems; one run stands for a system that is not trained."""
    generator = np.random.default_rng([seeds, others])
    experiments = 4000
    by_query = generator.normal(0, 0.3, size=(1, 300, experiments))
    runs = [
        by_query
        + seeded_scores(generator, number, 300, experiments, 0.01 if number > 1 else 0.0) / 2
        for number in (seeds, others)
    ]

    low, high = interval_over_seeds(*runs, confidence=0.95, lowest=-1.0)

    assert 0.93 <= np.mean((low <= 0) & (high >= 0)) <= 0.97


def test_resampling_three_seeds_covers_too_rarely():
    """Why seeds are not resampled: a plain loop over seeds and queries, where seeds differ most."""
    generator = np.random.default_rng(0)
    runs = seeded_scores(generator, 3, 100, 300, 0.2)
    resampled = []
    for _ in range(400):
        drawn = runs[generator.integers(3, size=3)]
        resampled.append(drawn[:, generator.integers(100, size=100)].mean(axis=(0, 1)))
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)

    student = interval_over_seeds(runs, confidence=0.95, lowest=-10.0)

    assert np.mean((low <= 0) & (high >= 0)) < 0.8
    assert np.mean((student[0] <= 0) & (student[1] >= 0)) > 0.9


def test_interval_over_equal_seeds_is_that_over_queries():
    values = np.random.default_rng(1).normal(0.5, 0.1, size=(200, 2))
    runs = np.stack([values, values, values])

    low, high = interval_over_seeds(runs, confidence=0.9)

    half_width = stats.t.ppf(0.95, 199) * values.std(axis=0, ddof=1) / np.sqrt(200)
    assert high - low == pytest.approx(2 * half_width, rel=1e-6)


@pytest.mark.parametrize(("seeds", "others"), [(1, None), (2, None), (2, 3), (3, 2), (1, 1)])
def test_interval_over_seeds_needs_three_trainings(seeds, others):
    runs = np.full((seeds, 20, 1), 0.5)
    rivals = None if others is None else np.full((others, 20, 1), 0.5)

    with pytest.raises(ValueError, match="needs 3 trainings"):
        interval_over_seeds(runs, rivals)


def test_interval_over_seeds_stays_within_the_metric():
    runs = np.random.default_rng(2).uniform(0, 1, size=(3, 12, 1)) > 0.9

    low, high = interval_over_seeds(runs.astype(float))

    assert low[0] >= 0
    assert high[0] <= 1


def test_interval_of_one_query_is_a_point():
    low, high = bootstrap_interval(np.array([[0.25, 1.0]]), 200, 0.95, 0)

    assert low.tolist() == [0.25, 1.0]
    assert high.tolist() == [0.25, 1.0]
