"""Test the drift report: false alarms, power, order, windows, and input that it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from model_code.drift.calibration import Calibration
from model_code.drift.descriptions import DESCRIPTIONS
from model_code.drift.measures import (
    INPUTS,
    Arrivals,
    OldScores,
    PairedScores,
    no_paired_scores,
)
from model_code.drift.report import DriftReport, concat_batches, make_report
from model_code.errors import FingerprintMismatch, FreshetError
from tests.model_code.drift.unit_vectors import SETTINGS, arrivals, calibration, reference

VECTOR_MEASURES = {"domain_auc"}


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    return calibration()


def exceeded_names(report: DriftReport) -> set[str]:
    return {measure.name for measure in report.exceeded}


def reasons_to_skip(report: DriftReport) -> dict[str, str]:
    return {skipped.name: skipped.why for skipped in report.unmeasured}


def test_false_alarms_are_at_most_alpha() -> None:
    alarms = []
    # Several references, because the chance of an alarm includes the sampling of the reference.
    for seed in range(4):
        calibrated = calibration(seed)
        for i in range(40, 80):
            report = make_report(calibrated, [arrivals(1000 * seed + i)], 30)
            alarms.append(bool(report.exceeded))

    # At exactly alpha, this test fails with a probability of .01.
    tolerance = 2.33 * np.sqrt(SETTINGS.alpha * (1 - SETTINGS.alpha) / 160)
    assert len(alarms) == 160
    assert np.mean(alarms) <= SETTINGS.alpha + tolerance


def reports_of_twenty_batches(calibrated: Calibration, **changes) -> list[set[str]]:
    """Return the names of the exceeded measures of 20 batches."""
    names = []
    for seed in range(50, 70):
        report = make_report(calibrated, [arrivals(seed, **changes)], 30)
        names.append(exceeded_names(report))
    return names


def test_shifted_documents_exceed_domain_auc(calibrated: Calibration) -> None:
    names = reports_of_twenty_batches(calibrated, shift=0.8)

    assert sum("domain_auc" in exceeded for exceeded in names) >= 19
    assert not any("new_quality" in exceeded for exceeded in names)


def test_worse_documents_exceed_new_quality(calibrated: Calibration) -> None:
    names = reports_of_twenty_batches(calibrated, worse=0.4)

    assert sum("new_quality" in exceeded for exceeded in names) >= 19
    # The rate of false alarms of a single reference may be above the mean of all references.
    assert sum("domain_auc" in exceeded for exceeded in names) <= 6


def test_asked_queries_exceed_beside_made_ones() -> None:
    rng = np.random.default_rng(3)
    old_scores = OldScores(calibration().scores.made, rng.random(200).astype(np.float32))
    calibrated = Calibration(reference(), SETTINGS, scores=old_scores)

    without_loss = []
    with_loss = []
    for seed in range(50, 70):
        batch = replace(arrivals(seed), asked=rng.random(30))
        without_loss.append(exceeded_names(make_report(calibrated, [batch], 30)))
        worse_batch = replace(arrivals(seed), asked=rng.random(30) - 0.4)
        with_loss.append(exceeded_names(make_report(calibrated, [worse_batch], 30)))

    assert sum("asked_quality" in exceeded for exceeded in with_loss) >= 19
    assert sum("asked_quality" in exceeded for exceeded in without_loss) <= 3
    assert sum("new_quality" in exceeded for exceeded in with_loss + without_loss) <= 3


def test_reports_do_not_depend_on_order(calibrated: Calibration) -> None:
    # Only a sample of 60 documents is measured.
    batch = arrivals(3, count=60)
    order = np.random.default_rng(0).permutation(60)
    shuffled_batch = Arrivals(batch.vectors[order], "f", batch.quality[order])

    report = make_report(calibrated, [batch], 60)
    shuffled_report = make_report(calibrated, [shuffled_batch], 60)

    for measure, shuffled in zip(report.measures, shuffled_report.measures, strict=True):
        assert measure.value == pytest.approx(shuffled.value, abs=1e-9)
        assert measure.threshold == shuffled.threshold


def test_reports_are_reproducible(calibrated: Calibration) -> None:
    batch = arrivals(3, count=60)

    report = make_report(calibrated, [batch], 60)

    assert make_report(calibration(), [batch], 60) == report


@pytest.fixture
def small_shifted_batches() -> list[Arrivals]:
    return [arrivals(seed, count=10, shift=0.8) for seed in range(60, 64)]


def test_small_batch_is_not_measured(
    calibrated: Calibration, small_shifted_batches: list[Arrivals]
) -> None:
    report = make_report(calibrated, small_shifted_batches[:1], 10)

    assert not report.exceeded
    assert set(reasons_to_skip(report)) >= VECTOR_MEASURES


def test_window_finds_drift_of_small_batches(
    calibrated: Calibration, small_shifted_batches: list[Arrivals]
) -> None:
    report = make_report(calibrated, small_shifted_batches, 40)

    assert report.documents == 10
    assert report.batches == 3
    assert report.window_documents == 30
    assert exceeded_names(report) >= VECTOR_MEASURES
    assert {measure.scope for measure in report.exceeded} == {"window"}


@pytest.mark.parametrize(("batch_count", "scope_count"), [(1, 1), (2, 2)])
def test_batch_and_window_share_alpha(
    calibrated: Calibration, batch_count: int, scope_count: int
) -> None:
    batches = [arrivals(80 + i) for i in range(batch_count)]

    report = make_report(calibrated, batches, 60)

    levels = {measure.detail.get("level") for measure in report.measures} - {None}
    # Two measures decide in each scope.
    assert levels == {SETTINGS.alpha / (2 * scope_count)}


def paired(before: np.ndarray, after: np.ndarray) -> PairedScores:
    """Return paired scores of a collection that did not grow."""
    return PairedScores(before, after, np.zeros(len(before)))


BEFORE = np.random.default_rng(0).random(80)


def test_loss_of_protected_queries_exceeds_its_threshold(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(1)], 200, paired(BEFORE, BEFORE - 0.2))

    assert exceeded_names(report) >= {"protected_old", "growth"}


def test_equal_scores_of_protected_queries_are_no_harm(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(1)], 200, paired(BEFORE, BEFORE))

    assert "protected_old" not in exceeded_names(report)


def test_too_few_protected_queries_are_skipped(calibrated: Calibration) -> None:
    scores = np.ones(SETTINGS.minimum_batch - 1)

    report = make_report(calibrated, [arrivals(1)], 30, paired(scores, scores - 1))

    assert "19 protected queries" in reasons_to_skip(report)["protected_old"]


# Too few protected queries are not searched, so they have no scores after the additions.
def test_unsearched_protected_queries_are_skipped(calibrated: Calibration) -> None:
    unsearched = PairedScores(np.ones(5), np.empty(0), np.empty(0))

    report = make_report(calibrated, [arrivals(1)], 30, unsearched)

    assert "5 protected queries" in reasons_to_skip(report)["protected_old"]


def changed(before: np.ndarray, after: np.ndarray) -> Arrivals:
    """Return a batch of new documents and of changed ones."""
    scores = paired(before, after)
    return replace(arrivals(1), changed_documents=len(before), changed=scores)


def test_changed_documents_found_worse_exceed(calibrated: Calibration) -> None:
    report = make_report(calibrated, [changed(BEFORE, BEFORE - 0.2)], 30)

    assert "changed_quality" in exceeded_names(report)


def test_changed_documents_as_hard_as_before_are_no_harm(calibrated: Calibration) -> None:
    low_scores = BEFORE / 10

    report = make_report(calibrated, [changed(low_scores, low_scores)], 30)

    assert "changed_quality" not in exceeded_names(report)


def test_reason_for_missing_scores_is_reported(calibrated: Calibration) -> None:
    batch = replace(arrivals(1), quality=None, unscored={"quality": "nothing to compare with"})
    report = make_report(calibrated, [batch], 30)

    assert reasons_to_skip(report)["new_quality"] == "nothing to compare with"


def test_changed_documents_count(calibrated: Calibration) -> None:
    report = make_report(calibrated, [changed(BEFORE, BEFORE)], 30)

    assert report.documents == len(arrivals(1).vectors) + 80


def test_few_changed_documents_are_measured_by_window(calibrated: Calibration) -> None:
    batch = changed(BEFORE[:15], BEFORE[:15] - 0.3)
    report = make_report(calibrated, [batch, batch], 30)

    (measure,) = report.of("changed_quality")
    assert measure.scope == "window"
    assert measure.detail["measured"] == 30


def test_statuses_of_refined_documents_count(calibrated: Calibration) -> None:
    batch = replace(arrivals(1), statuses=("COMPROMISE",) * 30)

    assert "conflicts" in exceeded_names(make_report(calibrated, [batch], 30))


def test_statuses_of_unrefined_documents_are_skipped(calibrated: Calibration) -> None:
    batch = replace(arrivals(1), statuses=("NOT_REFINED",) * 30)

    assert "conflicts" in reasons_to_skip(make_report(calibrated, [batch], 30))


def test_concatenated_batches_keep_their_values() -> None:
    first = arrivals(0, count=5)
    second = replace(arrivals(1, count=7), quality=None, statuses=("FITS",))

    batch = concat_batches([first, second])

    assert batch.vectors.shape == (12, 8)
    assert batch.quality.shape == (5,)
    assert batch.statuses == ("FITS",)


def test_all_inputs_are_concatenated() -> None:
    field_names = {field.name for field in fields(Arrivals)}
    joined_otherwise = {"fingerprint", "statuses", "unscored", "changed_documents", "changed"}
    joined_otherwise |= {"vector_ids", "examples"}

    assert field_names - joined_otherwise == set(INPUTS)


def test_report_names_the_documents_farthest_from_old_ones(calibrated: Calibration) -> None:
    batch = arrivals(0, count=30, shift=2.0)
    ids = tuple(f"n{number}" for number in range(30))
    direction = batch.vectors.mean(axis=0) - calibrated.reference.vectors.mean(axis=0)
    farthest = int(np.argmax(batch.vectors @ direction))

    examples = make_report(calibrated, [replace(batch, vector_ids=ids)], 30).examples

    assert examples["domain_auc"][0].document_id == f"n{farthest}"


def test_every_measure_of_a_report_is_described(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(0)], 30, no_paired_scores())

    measured = {measure.name for measure in report.measures}

    assert measured | set(reasons_to_skip(report)) == set(DESCRIPTIONS)


def test_descriptions_count_all_tests_of_a_report(calibrated: Calibration) -> None:
    report = make_report(calibrated, [arrivals(0), arrivals(1)], 30, no_paired_scores())

    counts = Counter(result.name for result in (*report.measures, *report.unmeasured))
    # Growth is counted and not tested.
    del counts["growth"]

    tests = {name: description.tests for name, description in DESCRIPTIONS.items()}
    assert counts == {name: count for name, count in tests.items() if count}


def test_vectors_of_another_retriever_are_refused(calibrated: Calibration) -> None:
    batch = replace(arrivals(0), fingerprint="other")

    with pytest.raises(FingerprintMismatch, match="build the reference of the retriever that is"):
        make_report(calibrated, [batch], 30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": np.ones((30, 5))}, r"vectors must be finite and \(n, 8\)"),
        ({"vectors": np.full((30, 8), np.nan)}, "vectors must be finite"),
        ({"quality": np.full(30, np.nan)}, "score is not a number"),
    ],
)
def test_unusable_values_are_refused(
    calibrated: Calibration, changes: dict[str, np.ndarray], message: str
) -> None:
    batch = replace(arrivals(0), **changes)

    with pytest.raises(FreshetError, match=message):
        make_report(calibrated, [batch], 30)


def test_vectors_are_skipped_if_the_reference_is_small() -> None:
    scores = OldScores(np.random.default_rng(0).random(60))
    calibrated = Calibration(reference(count=59), SETTINGS, scores=scores)

    report = make_report(calibrated, [arrivals(0)], 70)

    assert [measure.name for measure in report.measures] == ["new_quality", "growth"]
    assert exceeded_names(report) == {"growth"}
    reason = "the reference has 59, fewer than 3 x drift.minimum_batch = 60"
    assert reasons_to_skip(report)["domain_auc"] == reason


def test_quality_is_skipped_without_old_scores() -> None:
    report = make_report(Calibration(reference(), SETTINGS), [arrivals(0)], 30)

    assert "the reference has 0" in reasons_to_skip(report)["new_quality"]
