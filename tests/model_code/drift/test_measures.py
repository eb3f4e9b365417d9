"""Guards the measures of drift, each against its equation or a library: harm, protected queries,
conflicts, growth.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_code.drift.calibration import Calibration, contrast_rows
from model_code.drift.measures import (
    FITS,
    MEASURES,
    NOT_REFINED,
    PROTECTED_QUERIES,
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
from model_code.incdsi.adder import Status
from tests.model_code.drift.unit_vectors import SETTINGS, calibration, reference


def settings(**changes) -> DriftSettings:
    return DriftSettings(**({"minimum_batch": 20, "quality_margin": 0.0} | changes))


def normal(count: int, seed: int, shift: float = 0.0, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width)) + shift


def test_classifier_tells_shifted_documents() -> None:
    without = [domain_auc(normal(100, 2 * i), normal(50, 2 * i + 1), seed=i) for i in range(30)]
    assert abs(np.mean(without) - 0.5) < 0.03
    assert domain_auc(normal(100, 0), normal(50, 1, shift=0.6), seed=0) > 0.85
    old, new, order = normal(60, 0), normal(30, 1), np.random.default_rng(2).permutation(30)
    assert domain_auc(old, new[order], seed=0) == domain_auc(old, new, seed=0)
    assert domain_auc(old, new, seed=1) != domain_auc(old, new, seed=0)


def test_contrast_repeats_no_row() -> None:
    rows = np.arange(40)[:, None]
    assert len(np.unique(contrast_rows(rows, 15, seed=0))) == 15
    assert contrast_rows(rows, 40, seed=0) is rows


def quality(old: np.ndarray, new: np.ndarray, margin: float):
    """The judged measure of harm, new documents' scores beside those of old ones."""
    chosen = settings(quality_margin=margin, largest_batch=80, draws=399)
    calibrated = Calibration(reference(), chosen, scores=OldScores(made=old))
    return judge([calibrated.observe(MEASURES["new_quality"], new, "batch")], 0.05)[0]


def test_losses_beyond_the_margin_exceed() -> None:
    chance = np.random.default_rng(0)
    old = chance.random(300)
    found = [quality(old, chance.random(80) - loss, 0.01) for loss in (-0.3, 0.0, 0.15)]
    assert [measured.exceeded for measured in found] == [False, False, True]
    assert found[2].detail["new"] - found[2].detail["old"] == pytest.approx(found[2].value)
    assert found[2].detail["documents"] == 80
    assert found[2].detail["margin"] == 0.01
    alike, sure_loss = np.ones(300), np.full(80, 0.98)
    assert [quality(alike, sure_loss, margin).exceeded for margin in (0.01, 0.03)] == [True, False]


def test_margin_applies_to_quality_measures() -> None:
    calibrated, values = calibration(), np.zeros(30)
    within = calibrated.observe(MEASURES["new_quality"], values, "batch")
    without = calibrated.observe(replace(MEASURES["new_quality"], margin=False), values, "batch")
    assert without.null - within.null == pytest.approx(SETTINGS.quality_margin)
    assert within.detail["margin"] == SETTINGS.quality_margin
    assert ("margin" in without.detail) is False


def test_protected_queries_agree_with_the_paired_randomisation_test() -> None:
    chance = np.random.default_rng(1)
    before = chance.random(60)
    after = before - 0.05 + 0.2 * chance.standard_normal(60)
    scores = PairedScores(before, after, np.zeros(60))
    (found,) = judge([paired_change(PROTECTED_QUERIES, scores, settings(draws=20000))], 0.05)
    two_sided = paired_randomisation_test((after - before)[:, None], 20000, seed=1)[0]
    assert found.name == "protected_old"
    assert found.value == pytest.approx(np.mean(after - before))
    assert found.detail["p"] == pytest.approx(two_sided / 2, abs=0.01)
    assert found.detail["p_any_change"] == pytest.approx(two_sided, abs=0.01)


def test_loss_within_the_margin_is_no_harm() -> None:
    before = np.random.default_rng(0).random(400)
    after = before - 0.02 * (np.arange(400) % 2)  # a loss of .01, beyond doubt
    nothing = np.zeros(400)
    cases = [
        (0.0, nothing),
        (0.02, nothing),
        (0.0, nothing + 0.02),
        (0.0, 0.03 * (np.arange(400) % 2)),
    ]
    found = [
        paired_change(
            PROTECTED_QUERIES,
            PairedScores(before, after, crowded),
            settings(quality_margin=margin),
        )
        for margin, crowded in cases
    ]
    assert [judge([one], 0.05)[0].exceeded for one in found] == [True, False, False, False]
    assert [one.detail["crowding"] for one in found] == pytest.approx([0, 0, 0.02, 0.015])


def test_gain_is_no_harm() -> None:
    before = np.random.default_rng(0).random(50)
    scores = PairedScores(before, before + 0.3, np.zeros(50))

    (found,) = judge([paired_change(PROTECTED_QUERIES, scores, settings())], 0.05)

    assert not found.exceeded


def test_crowding_equals_the_cost_of_growth() -> None:
    """Beside collections from which a random half was taken away."""
    chance = np.random.default_rng(0)
    ranks = np.array([1, 2, 9, 11, 25, 60, 0])
    before = np.array(
        [
            reciprocal_ranks(1 + chance.binomial(np.maximum(ranks, 1) - 1, 0.5))
            for _ in range(40_000)
        ]
    )
    lost = np.where(ranks > 0, before.mean(axis=0) - reciprocal_ranks(ranks), 0)
    assert crowding(ranks, 0.5) == pytest.approx(lost, abs=0.002)
    assert crowding(ranks, 1.0) == pytest.approx(np.zeros(7), abs=1e-12)


def test_conflicts_exceed_beyond_chance() -> None:
    def exceeded(conflicting: int) -> bool:
        statuses = (
            ["COMPROMISE"] * conflicting + ["FITS"] * (100 - conflicting) + ["NOT_REFINED"] * 50
        )
        return judge([conflicts(statuses, settings())], 0.05)[0].exceeded

    assert {FITS, NOT_REFINED} < {status.name for status in Status}
    assert conflicts(["COMPROMISE", "FITS", "NOT_REFINED"], settings()).value == 0.5
    earlier = ["INFEASIBLE", "FITS_WITHOUT_SOME_QUERIES", "FITS"]
    assert conflicts(earlier, settings()).value == 2 / 3, "of earlier versions"
    assert [exceeded(count) for count in (0, 30, 34, 45)] == [False, False, False, True]


def test_growth_is_a_share_of_trained_documents() -> None:
    found = growth(60, 100, limit=0.5)
    assert found.value == 0.6
    assert found.threshold == 0.5
    assert (found.exceeded) is True
