"""Guards the verdicts of IncDSI's protocol: intervals, interpolation at equal loss, and what counts as met."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.incdsi_frontier.gates import Difference, Matched, adding_cost, at_matched_loss, resampled

OLD, NEW = 200, 300


def found(old: float, new: float) -> tuple[np.ndarray, np.ndarray]:
    """Reciprocal ranks, 1 for these shares of the queries and 0 for the rest."""
    return (np.arange(OLD) < old * OLD).astype(float), (np.arange(NEW) < new * NEW).astype(float)


def test_equal_values_differ_by_nothing() -> None:
    values = found(0.5, 0.5)[0]
    assert Difference.of(values, values) == Difference(0.0, 0.0, 0.0)


def test_an_interval_covers_about_95_percent() -> None:
    random, count = np.random.default_rng(1), 400
    values = random.normal(0.1, 1, (count, 100))  # many samples of one distribution, resampled alike
    samples = resampled(values, samples=300)
    ranges = [Difference.between(0.0, samples[:, number]) for number in range(count)]
    assert 0.9 <= np.mean([one.low <= 0.1 <= one.high for one in ranges]) <= 0.98


def test_resampling_is_paired_and_repeatable() -> None:
    values = np.random.default_rng(0).random((1, 50))
    both = resampled(np.concatenate([values, values + 1]), samples=20)
    np.testing.assert_allclose(both[:, 1] - both[:, 0], 1)
    np.testing.assert_array_equal(both, resampled(np.concatenate([values, values + 1]), samples=20))


def test_the_cost_of_adding_counts_first_places_alone() -> None:
    added, retrained = found(0.5, 0.5), found(0.5, 0.5)
    added[0][added[0] == 0] = 0.5  # found second
    assert adding_cost(added, retrained).mean == 0
    assert adding_cost(found(0.48, 0.0), found(0.5, 0.0)).mean == pytest.approx(0.02)


def test_ours_is_interpolated_at_the_papers_old_documents() -> None:
    ours = [found(0.6, 0.2), found(0.4, 0.8)]
    (one,) = at_matched_loss([found(0.5, 0.45)], ours)
    assert (one.old, one.new) == (pytest.approx(0.5), pytest.approx(0.45))
    assert one.change.mean == pytest.approx(0.05)
    assert one.change.low < 0.05 < one.change.high
    assert one.reached
    assert one.met


def test_a_setting_of_both_is_no_difference() -> None:
    paper = found(0.5, 0.45)
    (one,) = at_matched_loss([paper], [found(0.6, 0.2), paper, found(0.4, 0.8)])
    assert one.change.mean == pytest.approx(0)
    assert one.met


def test_what_ours_does_not_keep_is_not_met() -> None:
    above, below = at_matched_loss([found(0.7, 0.1), found(0.5, 0.9)], [found(0.6, 0.2), found(0.4, 0.8)])
    assert not above.reached
    assert not above.met
    assert below.reached
    assert not below.met


def test_met_needs_both() -> None:
    fine = Difference(0.0, -0.1, 0.1)
    assert Matched(0.5, 0.5, fine, True).met
    assert not Matched(0.5, 0.5, fine, False).met
