"""When the gate has too few judged queries to accept a retrain or a retune."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from model_code.evaluation.gate_power import (
    GAIN_DEVIATION,
    LOSS_DEVIATION,
    TYPICAL_DEVIATION,
    Deviations,
    GateQueries,
    deviation_details,
    gate_obstacle,
    needed_queries,
)
from model_code.evaluation.promotion import judge_promotion, judge_retrain
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.significance import queries_to_rule_out_loss

SETTINGS = PromotionSettings()
NEEDED = needed_queries(Deviations(), SETTINGS)


def make_scores(values: np.ndarray) -> SystemScores:
    """Return scores of queries "000", "001" and so on, equal on all protected metrics."""
    names = [f"{number:03}" for number in range(len(values))]
    table = pd.DataFrame(dict.fromkeys(SETTINGS.protected, values), index=names)
    return SystemScores("r", "gate", table)


def test_needed_queries_by_hand() -> None:
    """1.96 and 1.64 are the quantiles of the gate's level, and -1.28 is that of the chance."""
    quantile_of_chance = -1.281552
    gain_quantiles = 1.959964 + quantile_of_chance
    loss_quantiles = 1.644854 + quantile_of_chance

    needed = needed_queries(Deviations(), SETTINGS.replace(largest_plausible_gain=0.03))

    assert needed.gain == int(np.ceil((gain_quantiles * TYPICAL_DEVIATION / 0.03) ** 2))
    assert needed.no_loss == int(np.ceil((loss_quantiles * TYPICAL_DEVIATION / 0.02) ** 2))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.0625, 0.2])
def test_gate_can_accept_with_the_needed_queries_only(alpha: float) -> None:
    """If every query gains, the gate's test can be significant with this number and not below."""
    settings = SETTINGS.replace(alpha=alpha)
    needed = needed_queries(Deviations(gain=0.01), settings).gain

    passed = []
    for queries in (needed - 1, needed):
        before = np.full(queries, 0.5)
        verdict = judge_promotion(make_scores(before + 0.1), make_scores(before), settings)
        passed.append(verdict.passed)

    assert passed == [False, True]


@pytest.mark.parametrize(
    ("gain", "no_loss", "is_refused"),
    [
        (NEEDED.gain, NEEDED.no_loss, False),
        (NEEDED.gain - 1, NEEDED.no_loss, True),
        (NEEDED.gain, NEEDED.no_loss - 1, True),
        (NEEDED.gain, 0, False),
        (NEEDED.gain - 1, 0, True),
        (0, 0, True),
    ],
)
def test_both_groups_need_queries(gain: int, no_loss: int, is_refused: bool) -> None:
    obstacle = gate_obstacle(GateQueries(gain, no_loss), SETTINGS)

    assert (obstacle is not None) == is_refused


def test_reason_says_how_many_questions_are_needed() -> None:
    queries = GateQueries(NEEDED.gain, NEEDED.no_loss // 2)

    reason = gate_obstacle(queries, SETTINGS, judged=400)

    assert reason is not None
    assert f"{queries.no_loss} judged queries for old documents" in reason
    assert f"{NEEDED.no_loss} are needed" in reason
    growth = NEEDED.no_loss / queries.no_loss
    assert f"about {int(np.ceil(400 * growth))} judged questions in all, now 400" in reason


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS.replace(largest_plausible_gain=None),
        SETTINGS.replace(margin=0.0, largest_plausible_gain=0.99),
    ],
)
def test_settings_that_hold_nothing_back(settings: PromotionSettings) -> None:
    assert gate_obstacle(GateQueries(6, 1), settings) is None


def test_smaller_gain_needs_more_queries() -> None:
    smaller = needed_queries(Deviations(), SETTINGS.replace(largest_plausible_gain=0.02))

    assert smaller.gain > 2 * NEEDED.gain
    assert smaller.no_loss == NEEDED.no_loss


def test_gate_accepts_good_work_as_often_as_the_formula_says() -> None:
    """The numbers for a chance of one half are large enough for the normal approximation."""
    generator = np.random.default_rng(0)
    settings = SETTINGS.replace(permutations=200, bootstrap_samples=200)
    queries = queries_to_rule_out_loss(TYPICAL_DEVIATION, SETTINGS.margin, SETTINGS.alpha, 0.5)
    losses_ruled_out = 0
    for _ in range(60):
        change = generator.normal(0, TYPICAL_DEVIATION, queries)
        before = np.full(queries, 0.5)
        verdict = judge_promotion(make_scores(before + change), make_scores(before), settings)
        may_be_worse = any("worse" in reason for reason in verdict.reasons)
        losses_ruled_out += not may_be_worse

    assert 0.3 < losses_ruled_out / 60 < 0.7


def test_verdict_tells_the_deviations() -> None:
    before = np.full(40, 0.5)
    change = np.tile([0.2, -0.1], 20)
    verdict = judge_promotion(make_scores(before + change), make_scores(before), SETTINGS)

    details = deviation_details(verdict, SETTINGS)

    assert details[GAIN_DEVIATION] == pytest.approx(0.15)
    assert Deviations.of_details(details) == Deviations(0.15, 0.15)


def test_deviations_of_old_and_new_queries_are_told_apart() -> None:
    before = np.full(40, 0.5)
    change = np.concatenate([np.tile([0.2, -0.2], 10), np.tile([0.1, -0.1], 10)])
    new = {f"{number:03}" for number in range(20)}
    verdict = judge_retrain(make_scores(before + change), make_scores(before), SETTINGS, new)

    details = deviation_details(verdict, SETTINGS)

    assert details == {GAIN_DEVIATION: pytest.approx(0.2), LOSS_DEVIATION: pytest.approx(0.1)}


@pytest.mark.parametrize("details", [{}, {GAIN_DEVIATION: 0.0, LOSS_DEVIATION: 0.0}])
def test_unknown_deviations_are_typical(details: dict[str, float]) -> None:
    """If no query differed, the real deviation is unknown."""
    assert Deviations.of_details(details) == Deviations()


def test_no_verdict_has_no_deviations() -> None:
    assert deviation_details(None, SETTINGS) == {}
