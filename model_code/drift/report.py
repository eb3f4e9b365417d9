"""A drift report: every measure of a batch, and of the last batches together, judged as one family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from model_code.drift.calibration import Calibration, most_measured
from model_code.drift.measures import (
    INPUTS,
    MEASURES,
    Arrivals,
    DriftMeasure,
    PairedScores,
    Scope,
    Statistic,
    TestResult,
    conflicts,
    growth,
    judge,
    protected_change,
    refined_statuses,
)
from model_code.drift.settings import DriftSettings
from model_code.errors import FingerprintMismatch, FreshetError

NOT_GIVEN, NOT_REFINED = "nothing of the kind was given", "no addition was refined by IncDSI"
HEADER = ("measure", "value", "", "threshold", "without drift (1 % - median - 99 %)", "p", "")


@dataclass(frozen=True)
class SkippedMeasure:
    """A measure that this report does not have, and why."""

    name: str
    why: str
    scope: Scope = "batch"


@dataclass(frozen=True)
class DriftReport:
    """What was measured of the newest batch (`documents`) and of the last `batches` together
    (`window_documents`).

    reference: a note on what it is compared with.
    """

    documents: int
    batches: int
    window_documents: int
    alpha: float
    measures: tuple[TestResult, ...]
    unmeasured: tuple[SkippedMeasure, ...] = ()
    reference: str = ""

    @property
    def exceeded(self) -> tuple[TestResult, ...]:
        """The measures beyond their thresholds."""
        return tuple(measure for measure in self.measures if measure.exceeded)

    def of(self, *names: str) -> tuple[TestResult, ...]:
        """The measures of these names, whether of the batch or of the window."""
        return tuple(measure for measure in self.measures if measure.name in names)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, under the keys that the ledger keeps."""
        values = asdict(self)
        for measure in values["measures"]:
            measure["tripped"] = measure.pop("exceeded")
            measure["suspected"] = measure.pop("exceeded_uncorrected")
        return values

    @property
    def text(self) -> str:
        """Every value beside its threshold and its null distribution, what was not measured, and
        why.
        """
        window = (
            f", {self.window_documents} in the last {self.batches} batches"
            if self.batches > 1
            else ""
        )
        chance = f"false alarms of the whole report: at most {self.alpha:.0%}"
        lines = [f"drift of {self.documents} documents{window}; {chance}", *_table(self.measures)]
        lines += [f"compared with: {self.reference}"] * bool(self.reference)
        names: dict[tuple[Scope, str], list[str]] = {}
        for absent in self.unmeasured:
            names.setdefault((absent.scope, absent.why), []).append(absent.name)
        lines += [
            f"not measured ({scope}): {', '.join(named)}: {why}"
            for (scope, why), named in names.items()
        ]
        return "\n".join(lines) + "\n"


def make_report(
    calibration: Calibration,
    batches: Sequence[Arrivals],
    added: int,
    protected: PairedScores | None = None,
) -> DriftReport:
    """Measure the newest of `batches`, oldest first, and the last `drift.window` of them together.

    added: documents added since the last training, those of `batches` included. protected: the
    scores of protected queries before and after the additions; fewer than `drift.minimum_batch` are
    not measured. The chance that any measure trips although nothing has changed is at most
    `drift.alpha`, growth aside, which is counted and not tested. Raises FingerprintMismatch for
    vectors of another encoder, and FreshetError for arrays that do not fit or hold what is no
    number.
    """
    settings = calibration.settings
    newest, last = batches[-1], batches[-settings.window :]
    measured = list(observe(calibration, newest, "batch"))
    if len(last) > 1:
        measured += observe(calibration, concat_batches(last), "window")
    measured += [] if protected is None else [_protected(protected, settings)]
    judged = judge([each for each in measured if isinstance(each, Statistic)], settings.alpha)
    return DriftReport(
        len(newest.vectors),
        len(last),
        sum(len(batch.vectors) for batch in last),
        settings.alpha,
        (*judged, growth(added, calibration.reference.trained, settings.growth_limit)),
        tuple(each for each in measured if isinstance(each, SkippedMeasure)),
        calibration.reference.note,
    )


def observe(
    calibration: Calibration, arrivals: Arrivals, scope: Scope
) -> Iterator[Statistic | SkippedMeasure]:
    """Every measure of `arrivals`, or the reason why it cannot be taken."""
    _check(calibration, arrivals)
    for measure in MEASURES.values():
        values = getattr(arrivals, measure.input)
        if why := _why_not(calibration, measure, values):
            yield SkippedMeasure(measure.name, why, scope)
        else:
            yield calibration.observe(measure, values, scope)
    if refined_statuses(arrivals.statuses):
        yield conflicts(arrivals.statuses, calibration.settings, scope)
    else:
        yield SkippedMeasure("conflicts", NOT_REFINED, scope)


def _why_not(
    calibration: Calibration, measure: DriftMeasure, values: np.ndarray | None
) -> str | None:
    least, largest = calibration.settings.minimum_batch, calibration.settings.largest_batch
    compared = len(calibration.old(measure))
    if values is None:
        return NOT_GIVEN
    if len(values) < least:
        return f"{len(values)} are fewer than drift.minimum_batch = {least}"
    if most_measured(compared, largest) < least:
        return f"the reference has {compared}, fewer than 3 x drift.minimum_batch = {3 * least}"
    return None


def _protected(scores: PairedScores, settings: DriftSettings) -> Statistic | SkippedMeasure:
    if (count := max(len(scores.before), len(scores.after))) >= settings.minimum_batch:
        return protected_change(scores, settings)
    why = f"{count} protected queries (dev queries whose answers are live as they were) are fewer than"
    return SkippedMeasure("protected_old", f"{why} drift.minimum_batch = {settings.minimum_batch}")


def concat_batches(batches: Sequence[Arrivals]) -> Arrivals:
    """Batches of one encoder as one."""
    parts = {
        name: [part for batch in batches if (part := getattr(batch, name)) is not None]
        for name in INPUTS
    }
    joined: dict[str, Any] = {
        name: np.concatenate(present) for name, present in parts.items() if present
    }
    return replace(
        batches[-1],
        statuses=tuple(status for batch in batches for status in batch.statuses),
        **joined,
    )


def _check(calibration: Calibration, arrivals: Arrivals) -> None:
    reference = calibration.reference
    if arrivals.fingerprint != reference.fingerprint:
        raise FingerprintMismatch(
            f"the documents were encoded by {arrivals.fingerprint[:12]}, the drift reference by "
            f"{reference.fingerprint[:12]}: build the reference of the retriever that is live"
        )
    width = reference.vectors.shape[1]
    vectors, given = arrivals.vectors, [getattr(arrivals, name) for name in INPUTS]
    if vectors.ndim != 2 or vectors.shape[1] != width or not np.isfinite(vectors).all():
        raise FreshetError(
            f"vectors must be finite and (n, {width}), not {vectors.shape}; encode them again"
        )
    if any(values is not None and not np.isfinite(values).all() for values in given):
        raise FreshetError(
            "a document's score is not a number: leave out documents without held-out queries"
        )


def _table(measures: tuple[TestResult, ...]) -> list[str]:
    rows = [HEADER, *map(_row, measures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(measure: TestResult) -> tuple[str, ...]:
    null = (
        " - ".join(f"{measure.null[q]:.4f}" for q in ("0.01", "0.5", "0.99"))
        if measure.null
        else "a limit"
    )
    p = f"{measure.detail['p']:.4f}" if "p" in measure.detail else ""
    sign = ">" if measure.tail == "high" else "<"
    state = "TRIPPED" if measure.exceeded else "suspected" if measure.exceeded_uncorrected else ""
    return (measure.label, f"{measure.value:.4f}", sign, f"{measure.threshold:.4f}", null, p, state)
