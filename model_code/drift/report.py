"""The drift report: the tested measures of the newest batch and of the last batches.

All tests together raise a false alarm with a chance of at most `drift.alpha`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from model_code.drift.calibration import MIN_REFERENCE_RATIO, Calibration, max_batch_size
from model_code.drift.descriptions import CHANGED_DOCUMENTS, PROTECTED_QUERIES, format_percent
from model_code.drift.measures import (
    DOMAIN_AUC,
    INPUTS,
    MEASURES,
    Arrivals,
    DocumentExample,
    DriftMeasure,
    PairedScores,
    Scope,
    Statistic,
    TestResult,
    conflicts,
    farthest_from_old,
    growth,
    judge,
    largest_losses,
    paired_change,
    refined_statuses,
)
from model_code.drift.settings import DriftSettings
from model_code.errors import FingerprintMismatch, FreshetError

NO_VALUES = "no values were given"
NO_REFINED_DOCUMENTS = "no addition was refined by IncDSI"
HEADER = ("measure", "value", "", "threshold", "without drift (1 % - median - 99 %)", "p", "")


@dataclass(frozen=True)
class SkippedMeasure:
    """A drift measure that was not measured for a report.

    Attributes:
        name: Name of the measure.
        why: The reason why the measure was skipped.
        scope: Whether the measure is about the newest batch alone or the window of the last
            batches.
    """

    name: str
    why: str
    scope: Scope = "batch"


@dataclass(frozen=True)
class DriftReport:
    """The measures of the newest batch and of the window of the last batches.

    Attributes:
        documents: Number of new and changed documents of the newest batch.
        batches: Number of batches in the window.
        window_documents: Number of documents in the window.
        alpha: Largest chance that any measure exceeds its threshold although nothing has changed.
        measures: The results of the measures, each with its value and threshold.
        unmeasured: The measures that were skipped, each with its reason.
        reference: A note on the old documents that new ones are compared with.
        examples: Documents of the newest batch that illustrate a measure, by its name.
        incdsi: Effect of IncDSI on the newest batch, as sentences. Empty if it refined no document.
    """

    documents: int
    batches: int
    window_documents: int
    alpha: float
    measures: tuple[TestResult, ...]
    unmeasured: tuple[SkippedMeasure, ...] = ()
    reference: str = ""
    examples: Mapping[str, tuple[DocumentExample, ...]] = field(default_factory=dict)
    incdsi: str = ""

    @property
    def exceeded(self) -> tuple[TestResult, ...]:
        """The test results whose values are beyond their thresholds."""
        return tuple(measure for measure in self.measures if measure.exceeded)

    def of(self, *names: str) -> tuple[TestResult, ...]:
        """Return the results of the named measures, for the newest batch and for the window."""
        return tuple(measure for measure in self.measures if measure.name in names)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold, with the keys of the ledger's reports."""
        values = asdict(self)
        for measure in values["measures"]:
            measure["tripped"] = measure.pop("exceeded")
            measure["suspected"] = measure.pop("exceeded_uncorrected")
        return values

    @property
    def text(self) -> str:
        """The report for a reader: each value with its threshold, and the skipped measures."""
        window = ""
        if self.batches > 1:
            window = f", {self.window_documents} in the last {self.batches} batches"
        lines = [
            f"drift of {self.documents} documents{window}; "
            f"false alarms of the whole report: at most {format_percent(self.alpha)}"
        ]
        lines.extend(_table_lines(self.measures))
        if self.reference:
            lines.append(f"compared with: {self.reference}")
        if self.incdsi:
            lines.append(self.incdsi)
        lines.extend(self._skipped_lines())
        return "\n".join(lines) + "\n"

    def _skipped_lines(self) -> list[str]:
        """Return a line for each reason why measures were skipped, with their names."""
        names_by_reason: dict[tuple[Scope, str], list[str]] = {}
        for skipped in self.unmeasured:
            names_by_reason.setdefault((skipped.scope, skipped.why), []).append(skipped.name)
        return [
            f"not measured ({scope}): {', '.join(names)}: {reason}"
            for (scope, reason), names in names_by_reason.items()
        ]


def make_report(
    calibration: Calibration,
    batches: Sequence[Arrivals],
    added: int,
    protected: PairedScores | None = None,
) -> DriftReport:
    """Measure the newest batch, and the last `drift.window` batches together.

    The chance that any measure exceeds its threshold although nothing has changed is at most
    `drift.alpha`. This does not include growth, which is counted and not tested.

    Args:
        calibration: The null distributions.
        batches: Batches of new documents, oldest first.
        added: Number of documents added since the last training, including those of `batches`.
        protected: Scores of protected queries before and after the additions. They are skipped if
            there are fewer than `drift.minimum_batch` queries.

    Raises:
        FingerprintMismatch: If the vectors and the reference belong to different encoders.
        FreshetError: If the vectors have a wrong shape, or a value is not finite.
    """
    settings = calibration.settings
    newest = batches[-1]
    window = batches[-settings.window :]

    measured = list(observe(calibration, newest, "batch"))
    if len(window) > 1:
        measured.extend(observe(calibration, concat_batches(window), "window"))
    if protected is not None:
        measured.append(_measure_protected(protected, settings))

    statistics = [item for item in measured if isinstance(item, Statistic)]
    skipped = [item for item in measured if isinstance(item, SkippedMeasure)]
    grown = growth(added, calibration.reference.trained, settings.growth_limit)
    return DriftReport(
        documents=newest.documents,
        batches=len(window),
        window_documents=sum(batch.documents for batch in window),
        alpha=settings.alpha,
        measures=(*judge(statistics, settings.alpha), grown),
        unmeasured=tuple(skipped),
        reference=calibration.reference.note,
        examples=_find_examples(calibration, newest, protected),
    )


def _find_examples(
    calibration: Calibration, newest: Arrivals, protected: PairedScores | None
) -> dict[str, tuple[DocumentExample, ...]]:
    """Return documents of the newest batch that illustrate the measures, by the measure's name.

    Args:
        calibration: The null distributions, with the vectors of old documents.
        newest: The newest batch of documents.
        protected: Scores of queries for old documents, before and after the additions.
    """
    examples = dict(newest.examples)
    examples[DOMAIN_AUC.name] = farthest_from_old(calibration.reference.vectors, newest)
    examples[CHANGED_DOCUMENTS] = largest_losses(newest.changed)
    # Protected queries show whether additions push old documents down. Too few of them for a test
    # are not searched again, so they have no scores `after`.
    if protected is not None and len(protected.after):
        examples[PROTECTED_QUERIES] = largest_losses(protected)
    return {name: documents for name, documents in examples.items() if documents}


def observe(
    calibration: Calibration, arrivals: Arrivals, scope: Scope
) -> Iterator[Statistic | SkippedMeasure]:
    """Yield the value of every measure of new documents, or the reason why it is skipped.

    Raises:
        FingerprintMismatch: If the vectors and the reference belong to different encoders.
        FreshetError: If the vectors have a wrong shape, or a value is not finite.
    """
    _check_arrivals(calibration, arrivals)
    for measure in MEASURES.values():
        values = getattr(arrivals, measure.input)
        reason = arrivals.unscored.get(measure.input)
        if reason is None and values is None:
            reason = NO_VALUES
        elif reason is None:
            reason = _reason_to_skip(calibration, measure, values)
        if reason is not None:
            yield SkippedMeasure(measure.name, reason, scope)
        else:
            yield calibration.observe(measure, values, scope)

    yield _measure_changed(arrivals, calibration.settings, scope)

    if refined_statuses(arrivals.statuses):
        yield conflicts(arrivals.statuses, calibration.settings, scope)
    else:
        yield SkippedMeasure("conflicts", NO_REFINED_DOCUMENTS, scope)


def _reason_to_skip(
    calibration: Calibration, measure: DriftMeasure, values: np.ndarray
) -> str | None:
    """Return why there are too few documents to measure, or None if there are enough.

    Args:
        calibration: The null distributions, with the old documents.
        measure: The measure.
        values: Values of the new documents, (m, ...).
    """
    minimum = calibration.settings.minimum_batch
    if len(values) < minimum:
        return f"{len(values)} are fewer than drift.minimum_batch = {minimum}"

    compared = len(calibration.old(measure))
    if max_batch_size(compared, calibration.settings.largest_batch) < minimum:
        return (
            f"the reference has {compared}, fewer than {MIN_REFERENCE_RATIO} x drift.minimum_batch "
            f"= {MIN_REFERENCE_RATIO * minimum}"
        )
    return None


def _measure_protected(scores: PairedScores, settings: DriftSettings) -> Statistic | SkippedMeasure:
    """Measure how far additions push old documents down, if enough queries were scored.

    The scores are those of protected queries: judged queries for old documents. If there are too
    few, they are not searched after the additions, and the measure is skipped.
    """
    count = max(len(scores.before), len(scores.after))
    if count >= settings.minimum_batch:
        return paired_change(PROTECTED_QUERIES, scores, settings)
    reason = (
        f"{count} protected queries (dev queries whose answers are live as they were) are fewer "
        f"than drift.minimum_batch = {settings.minimum_batch}"
    )
    return SkippedMeasure(PROTECTED_QUERIES, reason)


def _measure_changed(
    arrivals: Arrivals, settings: DriftSettings, scope: Scope
) -> Statistic | SkippedMeasure:
    """Measure whether changed documents are found worse than their former versions.

    The measure is skipped if there are fewer scores than `drift.minimum_batch`.
    """
    scores = arrivals.changed
    count = len(scores.before)
    if count >= settings.minimum_batch:
        return paired_change(CHANGED_DOCUMENTS, scores, settings, scope)
    reason = arrivals.unscored.get("changed")
    if reason is None:
        minimum = settings.minimum_batch
        reason = f"{count} changed documents are fewer than drift.minimum_batch = {minimum}"
    return SkippedMeasure(CHANGED_DOCUMENTS, reason, scope)


def concat_batches(batches: Sequence[Arrivals]) -> Arrivals:
    """Join batches, whose vectors come from one encoder, to one batch.

    Values that no batch has are None. The examples are taken from the last batch.
    """
    joined: dict[str, Any] = {}
    for name in INPUTS:
        values = [getattr(batch, name) for batch in batches]
        present = [value for value in values if value is not None]
        if present:
            joined[name] = np.concatenate(present)

    statuses = tuple(status for batch in batches for status in batch.statuses)
    changed_documents = sum(batch.changed_documents for batch in batches)
    changed = PairedScores(
        before=np.concatenate([batch.changed.before for batch in batches]),
        after=np.concatenate([batch.changed.after for batch in batches]),
        crowding=np.concatenate([batch.changed.crowding for batch in batches]),
    )
    return replace(
        batches[-1],
        statuses=statuses,
        changed_documents=changed_documents,
        changed=changed,
        vector_ids=tuple(document_id for batch in batches for document_id in batch.vector_ids),
        **joined,
    )


def _check_arrivals(calibration: Calibration, arrivals: Arrivals) -> None:
    """Raise an error if new documents cannot be compared with the reference; see `observe`."""
    reference = calibration.reference
    if arrivals.fingerprint != reference.fingerprint:
        raise FingerprintMismatch(
            f"the documents were encoded by {arrivals.fingerprint[:12]}, the drift reference by "
            f"{reference.fingerprint[:12]}: build the reference of the retriever that is live"
        )

    width = reference.vectors.shape[1]
    vectors = arrivals.vectors
    if vectors.ndim != 2 or vectors.shape[1] != width or not np.isfinite(vectors).all():
        raise FreshetError(
            f"vectors must be finite and (n, {width}), not {vectors.shape}; encode them again"
        )
    for name in INPUTS:
        values = getattr(arrivals, name)
        if values is not None and not np.isfinite(values).all():
            raise FreshetError(
                "a document's score is not a number: leave out documents without held-out queries"
            )


def _table_lines(measures: tuple[TestResult, ...]) -> list[str]:
    """Return the lines of a table with a header and a row per measure, in aligned columns."""
    rows = [HEADER, *map(_table_row, measures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _table_row(measure: TestResult) -> tuple[str, ...]:
    """Return the cells of a measure, in the order of `HEADER`.

    A measure without a null distribution, such as growth, is compared with a limit.
    """
    null = "a limit"
    if measure.null:
        null = " - ".join(f"{measure.null[level]:.4f}" for level in ("0.01", "0.5", "0.99"))
    p = ""
    if "p" in measure.detail:
        p = f"{measure.detail['p']:.4f}"
    sign = ">" if measure.tail == "high" else "<"

    state = ""
    if measure.exceeded:
        state = "TRIPPED"
    elif measure.exceeded_uncorrected:
        state = "suspected"
    return (measure.label, f"{measure.value:.4f}", sign, f"{measure.threshold:.4f}", null, p, state)
