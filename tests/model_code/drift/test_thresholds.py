"""Guards thresholds: the exact rule p <= alpha, and how a family shares alpha."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.drift.measures import Statistic, Tail, critical_value, deciding_measures, judge
from model_code.errors import FreshetError


@pytest.mark.parametrize("tail", ["high", "low"])
@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_exceeding_means_p_at_most_the_level(tail: Tail, level: float) -> None:
    null = np.random.default_rng(0).integers(40, size=199).astype(float)  # with ties
    for value in np.arange(-1.0, 41.0):
        reached = (null >= value).sum() if tail == "high" else (null <= value).sum()
        (found,) = judge([Statistic("m", value, null, tail)], level)
        assert found.exceeded is bool((1 + reached) / 200 <= level)
        assert found.detail["p"] == pytest.approx((1 + reached) / 200)


def test_exchangeable_values_exceed_as_often_as_alpha() -> None:
    drawn = np.random.default_rng(0).standard_normal((1500, 100))
    exceeded = [judge([Statistic("m", row[0], row[1:])], 0.05)[0].exceeded for row in drawn]
    assert abs(np.mean(exceeded) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 1500)


def test_family_shares_alpha() -> None:
    null = np.arange(1.0, 400.0)
    values = [400.0, 385.0, 370.0, 1.0]  # p = .0025, .04, .0775, 1
    found = judge([Statistic(str(value), value, null) for value in values], 0.05)
    assert [one.exceeded for one in found] == [True, False, False, False]
    assert [one.exceeded_uncorrected for one in found] == [True, True, False, False]
    assert found[0].threshold == 395
    assert found[0].detail["level"] == 0.0125


def test_harm_measures_share_the_uncorrected_level() -> None:
    null = np.arange(1.0, 400.0)
    made, fewer, asked = (
        Statistic(name, 385.0, null, detail={"documents": count})  # p = .04
        for name, count in (("new_quality", 120), ("asked_quality", 119), ("asked_quality", 120))
    )
    other = Statistic("fit", 400.0, null)
    assert [one.exceeded_uncorrected for one in judge([made, other], 0.05)] == [True, True]
    assert [one.exceeded_uncorrected for one in judge([made, fewer, other], 0.05)] == [
        False,
        False,
        True,
    ]
    assert [one.exceeded_uncorrected for one in judge([made, asked, other], 0.05)] == [
        True,
        True,
        True,
    ]
    assert deciding_measures([made, other]) == [made]
    assert deciding_measures([made, fewer]) == [made, fewer]
    assert deciding_measures([asked, made]) == [asked]


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(FreshetError, match=r"takes 99"):
        critical_value(np.arange(50), 0.01, "high")
