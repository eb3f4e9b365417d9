"""Test thresholds: a measure exceeds at p <= level, and measures that decide share alpha."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from model_code.drift.measures import Statistic, Tail, critical_value, deciding_measures, judge
from model_code.errors import FreshetError

# 399 null values without ties. With the observed value, a p value is a multiple of 1 / 400.
NULL = np.arange(1.0, 400.0)


@pytest.mark.parametrize("tail", ["high", "low"])
@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_exceeding_means_p_at_most_the_level(tail: Tail, level: float) -> None:
    null_with_ties = np.random.default_rng(0).integers(40, size=199).astype(float)

    for value in np.arange(-1.0, 41.0):
        if tail == "high":
            extreme_count = (null_with_ties >= value).sum()
        else:
            extreme_count = (null_with_ties <= value).sum()
        p = (1 + extreme_count) / 200

        (result,) = judge([Statistic("m", value, null_with_ties, tail)], level)

        assert result.exceeded is bool(p <= level)
        assert result.detail["p"] == pytest.approx(p)


def test_exchangeable_values_exceed_as_often_as_alpha() -> None:
    samples = np.random.default_rng(0).standard_normal((1500, 100))

    exceeded = []
    for sample in samples:
        (result,) = judge([Statistic("m", sample[0], sample[1:])], 0.05)
        exceeded.append(result.exceeded)

    standard_error = np.sqrt(0.05 * 0.95 / 1500)
    assert abs(np.mean(exceeded) - 0.05) < 3 * standard_error


def test_family_shares_alpha() -> None:
    # p = .0025, .04, .0775 and 1
    values = [400.0, 385.0, 370.0, 1.0]

    results = judge([Statistic(str(value), value, NULL) for value in values], 0.05)

    assert [result.exceeded for result in results] == [True, False, False, False]
    assert results[0].threshold == 395
    assert results[0].detail["level"] == 0.0125


def test_uncorrected_level_is_not_shared() -> None:
    values = [400.0, 385.0, 370.0, 1.0]

    results = judge([Statistic(str(value), value, NULL) for value in values], 0.05)

    assert [result.exceeded_uncorrected for result in results] == [True, True, False, False]


# p is .04 for the three measures of harm.
MADE = Statistic("new_quality", 385.0, NULL, detail={"documents": 120})
ASKED_FEWER = Statistic("asked_quality", 385.0, NULL, detail={"documents": 119})
ASKED = Statistic("asked_quality", 385.0, NULL, detail={"documents": 120})
FIT = Statistic("fit", 400.0, NULL)


@pytest.mark.parametrize(
    ("statistics", "exceeded_uncorrected"),
    [
        ([MADE, FIT], [True, True]),
        ([MADE, ASKED_FEWER, FIT], [False, False, True]),
        ([MADE, ASKED, FIT], [True, True, True]),
    ],
)
def test_harm_measures_share_the_uncorrected_level(
    statistics: Sequence[Statistic], exceeded_uncorrected: list[bool]
) -> None:
    results = judge(statistics, 0.05)

    assert [result.exceeded_uncorrected for result in results] == exceeded_uncorrected


@pytest.mark.parametrize(
    ("statistics", "deciding"),
    [
        ([MADE, FIT], [MADE]),
        ([MADE, ASKED_FEWER], [MADE, ASKED_FEWER]),
        ([ASKED, MADE], [ASKED]),
    ],
)
def test_asked_queries_decide_if_they_cover_as_many_documents(
    statistics: Sequence[Statistic], deciding: list[Statistic]
) -> None:
    assert deciding_measures(statistics) == deciding


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(FreshetError, match=r"takes 99"):
        critical_value(np.arange(50), 0.01, "high")
