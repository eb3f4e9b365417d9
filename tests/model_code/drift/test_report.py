"""Guards the report as a whole: false alarms at most alpha, power, order, windows, and what it
refuses to compare.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from model_code.drift.calibration import Calibration
from model_code.drift.measures import INPUTS, MEASURES, Arrivals, OldScores, PairedScores
from model_code.drift.report import DriftReport, concat_batches, make_report
from model_code.drift.settings import MAX_MEASURES
from model_code.errors import FingerprintMismatch, FreshetError
from tests.model_code.drift.unit_vectors import SETTINGS, arrivals, calibration, reference

OF_VECTORS = {"domain_auc"}


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    return calibration()


def names(report: DriftReport) -> set[str]:
    return {one.name for one in report.exceeded}


def test_false_alarms_are_at_most_alpha() -> None:
    alarms = []
    for seed in range(4):  # of references too: the luck of one sample is part of the chance
        calibrated = calibration(seed)
        alarms += [
            bool(make_report(calibrated, [arrivals(1000 * seed + i)], 30).exceeded)
            for i in range(40, 80)
        ]
    assert len(alarms) == 160
    # passed with a chance of .01 at exactly alpha
    error = 2.33 * np.sqrt(SETTINGS.alpha * (1 - SETTINGS.alpha) / 160)
    assert np.mean(alarms) <= SETTINGS.alpha + error


def test_shifted_documents_exceed_domain_auc(calibrated: Calibration) -> None:
    found = [names(make_report(calibrated, [arrivals(50 + i, shift=0.8)], 30)) for i in range(20)]
    assert sum(one >= OF_VECTORS for one in found) >= 19
    assert not any("new_quality" in one for one in found)


def test_worse_documents_exceed_quality_alone(calibrated: Calibration) -> None:
    found = [names(make_report(calibrated, [arrivals(50 + i, worse=0.4)], 30)) for i in range(20)]
    assert sum("new_quality" in one for one in found) >= 19
    assert sum(bool(one & OF_VECTORS) for one in found) <= 3


def test_asked_queries_exceed_beside_made_ones() -> None:
    chance = np.random.default_rng(3)
    scores = OldScores(calibration().scores.made, chance.random(200).astype(np.float32))
    calibrated = Calibration(reference(), SETTINGS, scores=scores)
    found = [
        names(
            make_report(calibrated, [replace(arrivals(50 + i), asked=chance.random(30) - loss)], 30)
        )
        for i in range(20)
        for loss in (0.0, 0.4)
    ]
    assert sum("asked_quality" in one for one in found[1::2]) >= 19
    assert sum("asked_quality" in one for one in found[::2]) <= 3
    assert sum("new_quality" in one for one in found) <= 3


def test_reports_do_not_depend_on_order(calibrated: Calibration) -> None:
    batch = arrivals(3, count=60)  # more than are measured, so a sample
    order = np.random.default_rng(0).permutation(60)
    turned = Arrivals(batch.vectors[order], "f", batch.quality[order])
    first, second = (make_report(calibrated, [one], 60) for one in (batch, turned))
    for ours, theirs in zip(first.measures, second.measures, strict=True):
        assert ours.value == pytest.approx(theirs.value, abs=1e-9)
        assert ours.threshold == theirs.threshold
    assert make_report(calibration(), [batch], 60) == first


def test_window_finds_drift_of_small_batches(calibrated: Calibration) -> None:
    batches = [arrivals(60 + i, count=10, shift=0.8) for i in range(4)]
    alone, together = make_report(calibrated, batches[:1], 10), make_report(calibrated, batches, 40)
    assert not alone.exceeded
    assert {one.name for one in alone.unmeasured} >= OF_VECTORS
    assert together.documents == 10
    assert together.batches == 3
    assert together.window_documents == 30
    assert names(together) >= OF_VECTORS
    assert all(one.scope == "window" for one in together.exceeded)


def test_batch_and_window_share_alpha(calibrated: Calibration) -> None:
    one, two = (
        make_report(calibrated, [arrivals(80 + i) for i in range(count)], 60) for count in (1, 2)
    )
    levels = [
        {m.detail["level"] for m in report.measures if "level" in m.detail} for report in (one, two)
    ]
    assert levels == [{SETTINGS.alpha / 2}, {SETTINGS.alpha / 4}]


def paired(before: np.ndarray, after: np.ndarray) -> PairedScores:
    """Return paired scores of a collection that did not grow."""
    return PairedScores(before, after, np.zeros(len(before)))


def reasons_to_skip(report: DriftReport) -> dict[str, str]:
    return {skipped.name: skipped.why for skipped in report.unmeasured}


BEFORE = np.random.default_rng(0).random(80)


def test_loss_of_protected_queries_exceeds_its_threshold(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(1)], 200, paired(BEFORE, BEFORE - 0.2))

    assert names(report) >= {"protected_old", "growth"}


def test_equal_scores_of_protected_queries_are_no_harm(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(1)], 200, paired(BEFORE, BEFORE))

    assert "protected_old" not in names(report)


def test_too_few_protected_queries_are_skipped(calibrated: Calibration) -> None:
    few = np.ones(SETTINGS.minimum_batch - 1)
    report = make_report(calibrated, [arrivals(1)], 30, paired(few, few - 1))

    assert "19 protected queries" in reasons_to_skip(report)["protected_old"]


def changed(before: np.ndarray, after: np.ndarray) -> Arrivals:
    """Return a batch of new documents and of changed ones."""
    scores = paired(before, after)
    return replace(arrivals(1), changed_documents=len(before), changed=scores)


def test_changed_documents_that_are_found_worse_exceed_the_threshold(
    calibrated: Calibration,
) -> None:
    report = make_report(calibrated, [changed(BEFORE, BEFORE - 0.2)], 30)

    assert "changed_quality" in names(report)


def test_changed_documents_that_were_always_hard_to_find_are_no_harm(
    calibrated: Calibration,
) -> None:
    hard = BEFORE / 10
    report = make_report(calibrated, [changed(hard, hard)], 30)

    assert "changed_quality" not in names(report)


def test_changed_documents_count(calibrated: Calibration) -> None:
    report = make_report(calibrated, [changed(BEFORE, BEFORE)], 30)

    assert report.documents == len(arrivals(1).vectors) + 80


def test_changed_documents_of_small_batches_are_measured_together(calibrated: Calibration) -> None:
    batch = changed(BEFORE[:15], BEFORE[:15] - 0.3)
    report = make_report(calibrated, [batch, batch], 30)

    (measure,) = report.of("changed_quality")
    assert measure.scope == "window"
    assert measure.detail["measured"] == 30


def test_statuses_of_refined_documents_count(calibrated: Calibration) -> None:
    conflicting = replace(arrivals(1), statuses=("COMPROMISE",) * 30)
    assert "conflicts" in names(make_report(calibrated, [conflicting], 30))
    unrefined = make_report(calibrated, [replace(arrivals(1), statuses=("NOT_REFINED",) * 30)], 30)
    assert "conflicts" in {one.name for one in unrefined.unmeasured}


def test_concatenated_batches_keep_their_values() -> None:
    both = concat_batches(
        [arrivals(0, count=5), replace(arrivals(1, count=7), quality=None, statuses=("FITS",))]
    )
    assert both.vectors.shape == (12, 8)
    assert both.quality.shape == (5,)
    assert both.statuses == ("FITS",)


def test_all_inputs_are_concatenated() -> None:
    joined_otherwise = {"fingerprint", "statuses", "changed_documents", "changed"}
    assert {field.name for field in fields(Arrivals)} - joined_otherwise == set(INPUTS)
    of_each_scope = len(MEASURES) + len(["conflicts", "changed_quality"])
    assert 2 * of_each_scope + len(["protected_old"]) == MAX_MEASURES


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"fingerprint": "other"},
            FingerprintMismatch,
            "build the reference of the retriever that is live",
        ),
        ({"vectors": np.ones((30, 5))}, FreshetError, r"vectors must be finite and \(n, 8\)"),
        ({"vectors": np.full((30, 8), np.nan)}, FreshetError, "vectors must be finite"),
        ({"quality": np.full(30, np.nan)}, FreshetError, "score is not a number"),
    ],
)
def test_unfitting_vectors_are_refused(calibrated, changed, error, message):
    with pytest.raises(error, match=message):
        make_report(calibrated, [replace(arrivals(0), **changed)], 30)


def test_unmeasurable_values_are_skipped() -> None:
    scores = OldScores(np.random.default_rng(0).random(60))
    report = make_report(
        Calibration(reference(count=59), SETTINGS, scores=scores), [arrivals(0)], 70
    )
    assert [one.name for one in report.measures] == ["new_quality", "growth"]
    assert names(report) == {"growth"}
    why = {one.name: one.why for one in report.unmeasured}
    assert why["domain_auc"] == "the reference has 59, fewer than 3 x drift.minimum_batch = 60"
    report = make_report(Calibration(reference(), SETTINGS), [arrivals(0)], 30)
    assert "the reference has 0" in {one.name: one.why for one in report.unmeasured}["new_quality"]
