"""Test each measure of drift against its equation or a library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_code.drift.calibration import Calibration, contrast_rows
from model_code.drift.descriptions import PROTECTED_QUERIES
from model_code.drift.measures import (
    MEASURES,
    OldScores,
    PairedScores,
    conflicts,
    crowding,
    domain_auc,
    growth,
    judge,
    paired_change,
    reciprocal_ranks,
)
from model_code.drift.settings import DriftSettings
from model_code.evaluation.significance import paired_randomisation_test
from tests.model_code.drift.unit_vectors import SETTINGS, calibration, reference


def settings(**changes) -> DriftSettings:
    fields = {"minimum_batch": 20, "quality_margin": 0.0}
    fields.update(changes)
    return DriftSettings(**fields)


def normal(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Return `count` rows of 12 normal values each; the shift is added to every value."""
    return np.random.default_rng(seed).standard_normal((count, 12)) + shift


def test_domain_auc_is_half_for_equal_distributions() -> None:
    values = []
    for seed in range(30):
        old = normal(100, 2 * seed)
        new = normal(50, 2 * seed + 1)
        values.append(domain_auc(old, new, seed=seed))

    assert abs(np.mean(values) - 0.5) < 0.03


def test_domain_auc_is_high_for_shifted_documents() -> None:
    assert domain_auc(normal(100, 0), normal(50, 1, shift=0.6), seed=0) > 0.85


def test_domain_auc_does_not_depend_on_order() -> None:
    old = normal(60, 0)
    new = normal(30, 1)
    order = np.random.default_rng(2).permutation(30)

    assert domain_auc(old, new[order], seed=0) == domain_auc(old, new, seed=0)


def test_domain_auc_depends_on_the_seed() -> None:
    old = normal(60, 0)
    new = normal(30, 1)

    assert domain_auc(old, new, seed=1) != domain_auc(old, new, seed=0)


def test_contrast_repeats_no_row() -> None:
    rows = np.arange(40)[:, None]

    assert len(np.unique(contrast_rows(rows, 15, seed=0))) == 15


def test_contrast_of_few_rows_is_all_of_them() -> None:
    rows = np.arange(40)[:, None]

    assert contrast_rows(rows, 40, seed=0) is rows


def judge_new_quality(old: np.ndarray, new: np.ndarray, margin: float):
    """Judge the scores of new documents beside those of old ones."""
    drift_settings = settings(quality_margin=margin, largest_batch=80, draws=399)
    calibrated = Calibration(reference(), drift_settings, scores=OldScores(made=old))
    statistic = calibrated.observe(MEASURES["new_quality"], new, "batch")
    (result,) = judge([statistic], 0.05)
    return result


def test_only_losses_beyond_the_margin_exceed() -> None:
    rng = np.random.default_rng(0)
    old = rng.random(300)

    gain = judge_new_quality(old, rng.random(80) + 0.3, 0.01)
    no_change = judge_new_quality(old, rng.random(80), 0.01)
    loss = judge_new_quality(old, rng.random(80) - 0.15, 0.01)

    assert not gain.exceeded
    assert not no_change.exceeded
    assert loss.exceeded


def test_new_quality_reports_both_means() -> None:
    rng = np.random.default_rng(0)

    loss = judge_new_quality(rng.random(300), rng.random(80) - 0.15, 0.01)

    assert loss.detail["new"] - loss.detail["old"] == pytest.approx(loss.value)
    assert loss.detail["documents"] == 80
    assert loss.detail["margin"] == 0.01


@pytest.mark.parametrize(("margin", "exceeded"), [(0.01, True), (0.03, False)])
def test_sure_loss_exceeds_only_a_smaller_margin(margin: float, exceeded: bool) -> None:
    perfect_scores = np.ones(300)
    lower_scores = np.full(80, 0.98)

    assert judge_new_quality(perfect_scores, lower_scores, margin).exceeded is exceeded


def test_margin_shifts_the_null_of_quality_measures() -> None:
    calibrated = calibration()
    scores = np.zeros(30)
    measure_without_margin = replace(MEASURES["new_quality"], margin=False)

    with_margin = calibrated.observe(MEASURES["new_quality"], scores, "batch")
    without_margin = calibrated.observe(measure_without_margin, scores, "batch")

    shift = without_margin.null - with_margin.null
    assert shift == pytest.approx(SETTINGS.quality_margin)
    assert with_margin.detail["margin"] == SETTINGS.quality_margin
    assert "margin" not in without_margin.detail


def judge_protected_queries(scores: PairedScores, drift_settings: DriftSettings):
    (result,) = judge([paired_change(PROTECTED_QUERIES, scores, drift_settings)], 0.05)
    return result


def test_protected_queries_agree_with_the_paired_randomisation_test() -> None:
    rng = np.random.default_rng(1)
    before = rng.random(60)
    after = before - 0.05 + 0.2 * rng.standard_normal(60)

    result = judge_protected_queries(
        PairedScores(before, after, np.zeros(60)), settings(draws=20000)
    )

    differences = (after - before)[:, None]
    two_sided_p = paired_randomisation_test(differences, 20000, seed=1)[0]
    assert result.name == "protected_old"
    assert result.value == pytest.approx(np.mean(after - before))
    assert result.detail["p"] == pytest.approx(two_sided_p / 2, abs=0.01)
    assert result.detail["p_any_change"] == pytest.approx(two_sided_p, abs=0.01)


IS_ODD = np.arange(400) % 2


@pytest.mark.parametrize(
    ("margin", "crowding_losses", "exceeded"),
    [
        pytest.param(0.0, np.zeros(400), True, id="no margin"),
        pytest.param(0.02, np.zeros(400), False, id="margin above the loss"),
        pytest.param(0.0, np.full(400, 0.02), False, id="growth explains the loss"),
        pytest.param(0.0, 0.03 * IS_ODD, False, id="growth explains the loss of half the queries"),
    ],
)
def test_loss_within_margin_and_crowding_is_no_harm(
    margin: float, crowding_losses: np.ndarray, exceeded: bool
) -> None:
    before = np.random.default_rng(0).random(400)
    # Every second query loses .02. The mean loss of .01 is beyond doubt.
    after = before - 0.02 * IS_ODD

    result = judge_protected_queries(
        PairedScores(before, after, crowding_losses), settings(quality_margin=margin)
    )

    assert result.exceeded is exceeded
    assert result.detail["crowding"] == pytest.approx(crowding_losses.mean())


def test_gain_is_no_harm() -> None:
    before = np.random.default_rng(0).random(50)

    result = judge_protected_queries(PairedScores(before, before + 0.3, np.zeros(50)), settings())

    assert not result.exceeded


def test_crowding_equals_the_cost_of_growth() -> None:
    """Compare with collections from which a random half was taken away."""
    rng = np.random.default_rng(0)
    ranks = np.array([1, 2, 9, 11, 25, 60, 0])
    is_ranked = ranks > 0
    better_ranked = np.maximum(ranks, 1) - 1

    scores_before = []
    for _ in range(40_000):
        ranks_before = 1 + rng.binomial(better_ranked, 0.5)
        scores_before.append(reciprocal_ranks(ranks_before))
    losses = np.mean(scores_before, axis=0) - reciprocal_ranks(ranks)

    assert crowding(ranks, 0.5) == pytest.approx(np.where(is_ranked, losses, 0), abs=0.002)


def test_crowding_is_zero_without_growth() -> None:
    ranks = np.array([1, 2, 9, 11, 25, 60, 0])

    assert crowding(ranks, 1.0) == pytest.approx(np.zeros(7), abs=1e-12)


@pytest.mark.parametrize(
    ("conflicting", "exceeded"), [(0, False), (30, False), (34, False), (45, True)]
)
def test_conflicts_exceed_beyond_chance(conflicting: int, exceeded: bool) -> None:
    statuses = ["COMPROMISE"] * conflicting
    statuses += ["FITS"] * (100 - conflicting)
    statuses += ["NOT_REFINED"] * 50

    (result,) = judge([conflicts(statuses, settings())], 0.05)

    assert result.exceeded is exceeded


def test_conflicts_are_a_share_of_refined_documents() -> None:
    assert conflicts(["COMPROMISE", "FITS", "NOT_REFINED"], settings()).value == 0.5


def test_conflicts_count_unknown_statuses() -> None:
    statuses = ["INFEASIBLE", "FITS_WITHOUT_SOME_QUERIES", "FITS"]

    assert conflicts(statuses, settings()).value == 2 / 3


def test_growth_is_a_share_of_trained_documents() -> None:
    result = growth(60, 100, limit=0.5)

    assert result.value == 0.6
    assert result.threshold == 0.5
    assert result.exceeded is True
