"""Guards topic drift: both divergences against sums written out and scipy, their bounds, and the null distribution.

pytest tests/model_code/drift/test_topics.py
"""

from __future__ import annotations

from math import log, log2

import numpy as np
import pytest

from model_code.drift.draws import draw_batches
from model_code.drift.topics import (
    DIVERGENCES,
    counts_of,
    jensen_shannon,
    most_moved,
    null_divergence,
    population_stability,
)

OLD, NEW = np.array([50, 30, 0, 20]), np.array([5, 0, 4, 1])


def test_jensen_shannon_is_the_sum_written_out_and_scipys() -> None:
    from scipy.spatial.distance import jensenshannon

    p, q = OLD / OLD.sum(), NEW / NEW.sum()
    total = 0.0
    for x, y in zip(p, q, strict=True):
        for share in (x, y):
            total += share * log2(share / ((x + y) / 2)) / 2 if share else 0.0
    assert jensen_shannon(OLD, NEW) == pytest.approx(total)
    assert jensen_shannon(OLD, NEW) == pytest.approx(jensenshannon(p, q, base=2) ** 2)


def test_population_stability_is_the_sum_written_out() -> None:
    total = 0.0
    for x, y in zip(OLD, NEW, strict=True):
        p, q = (x + 0.5) / (OLD.sum() + 2), (y + 0.5) / (NEW.sum() + 2)
        total += (q - p) * log(q / p)
    assert population_stability(OLD, NEW) == pytest.approx(total)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_zero_for_equal_shares_and_largest_for_disjoint_ones(name: str) -> None:
    divergence = DIVERGENCES[name]
    assert divergence(100 * OLD, 100 * OLD) == pytest.approx(0)
    apart = divergence(np.array([90, 0]), np.array([0, 30]))
    assert apart > divergence(np.array([90, 10]), np.array([3, 27])) > 0
    assert jensen_shannon(np.array([90, 0]), np.array([0, 30])) == pytest.approx(1)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_null_values_are_those_of_each_drawn_batch(name: str) -> None:
    topics = np.random.default_rng(0).integers(5, size=60)
    members = draw_batches(60, 15, 10, seed=0)
    expected = [DIVERGENCES[name](counts_of(topics[~row], 5), counts_of(topics[row], 5)) for row in members]
    np.testing.assert_allclose(null_divergence(topics, 5, members, name), expected)


def test_a_customary_threshold_false_alarms_where_the_bootstrap_does_not() -> None:
    topics = np.random.default_rng(0).integers(40, size=900)
    null = null_divergence(topics, 40, draw_batches(900, 100, 200, seed=0), "population_stability")
    assert (null > 0.2).mean() > 0.5
    fresh = np.random.default_rng(1).integers(40, size=(100, 100))
    found = population_stability(counts_of(topics, 40), np.stack([counts_of(row, 40) for row in fresh]))
    assert (found > np.quantile(null, 0.95)).mean() < 0.15


def test_the_nodes_that_moved_most() -> None:
    assert most_moved(np.array([4, 2, 2]), np.array([2, 2, 4]), 1) == [{"node": 0, "old": 0.5, "new": 0.25}]
