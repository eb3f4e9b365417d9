"""The ladder add -> pilot -> retrain: what a drift report calls for.

*Retrain* on harm, which retraining mends: new documents found significantly worse than old ones, by
the queries that they arrived with or, where too few have such, by those made from them; additions
that push old documents down by more than growth alone would; constraints that conflict; growth past
its limit. Where the vectors drifted, harm is tested a second time, with all of alpha for its own
measures: that test counts only once a test of the corrected family has exceeded, so documents like
the old ones still cause a false alarm with a chance of at most alpha (a gatekeeping procedure),
others that are no worse too, and drift with harm is found sooner. *Add* otherwise, even where
vectors drifted: an encoder may serve new topics well. Beside adding, a *pilot* is called for where
documents drifted and the queries that they came with show no harm: found as well as old ones, they
may still be found worse than training would find them, which only a training on some of them tells.
A retrain follows if it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from model_code.drift.measures import (
    ASKED_QUERIES,
    MADE_QUERIES,
    SHIFT_MEASURES,
    TestResult,
    deciding_measures,
)
from model_code.drift.report import DriftReport
from model_code.drift.settings import DriftSettings

Action = Literal["add", "retrain"]
PILOT_DUE = "documents moved, and the queries that came with them show no harm: whether training helps, a pilot tells"
LIMITS = ("conflicts", "growth", "protected_old")


@dataclass(frozen=True)
class PastDecision:
    """What was decided for an earlier batch, and whether it was carried out and succeeded.

    waits: it is under way, or will be tried again. pilot: one was called for beside it, whatever
    came of that.
    """

    action: Action
    carried_out: bool = True
    waits: bool = False
    pilot: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do, and why. wanted: what the measures call for, which a cooldown may hold back.

    dry_run: nobody is to act on it. pilot: beside `action`, a training on a sample is to tell
    whether a retrain is due.
    """

    action: Action
    reasons: tuple[str, ...]
    wanted: Action
    dry_run: bool = False
    pilot: bool = False

    def held_back(self, why: str) -> Decision:
        """To add, whatever is called for."""
        return replace(self, action="add", reasons=(*self.reasons, f"held back: {why}"))

    @property
    def text(self) -> str:
        """The decision and its reasons, a line each."""
        note = f" (called for: {self.wanted})" if self.wanted != self.action else ""
        dry = ", a dry run" if self.dry_run else ""
        lines = [
            f"decision: {self.action}{note}{dry}",
            *(f"  - {reason}" for reason in self.reasons),
        ]
        return "\n".join(lines) + "\n"


def decide(
    report: DriftReport,
    history: Sequence[PastDecision],
    settings: DriftSettings,
    dry_run: bool = False,
) -> Decision:
    """The rung for `report`. history: one entry per earlier batch, oldest first.

    A retrain is held back if one waits, or was carried out in the last `settings.cooldown` batches:
    its effect is not measured yet. One that failed for good or was a dry run does not hold anything
    back.
    """
    rung, reasons = _rung(report, settings)
    hold = _hold(history, settings.cooldown) if rung == "retrain" else None
    pilot = rung != "retrain" and _pilot_due(report, history, settings)
    how = f"{PILOT_DUE} (the sensor starts it; by hand, freshet retrain --pilot {settings.pilot_documents})"
    decision = Decision(rung, reasons + (how,) * pilot, rung, dry_run, pilot)
    return decision if hold is None else decision.held_back(hold)


def _pilot_due(
    report: DriftReport, history: Sequence[PastDecision], settings: DriftSettings
) -> bool:
    """Whether harm is in doubt, no pilot was called for in the last batches, and no retrain holds
    one back.
    """
    in_doubt = bool(report.of(ASKED_QUERIES) and _exceeded(report, *SHIFT_MEASURES))
    if not in_doubt or settings.pilot_documents is None:
        return False
    recent = history[-settings.cooldown :] if settings.cooldown else ()
    return not any(past.pilot for past in recent) and not _hold(history, settings.cooldown)


def _hold(history: Sequence[PastDecision], cooldown: int) -> str | None:
    """Why a retrain must wait, if it must."""
    if any(past.waits for past in history):
        return "a retrain was asked for before and is not settled yet"
    recent = history[-cooldown:] if cooldown else ()
    if any(past.action == "retrain" and past.carried_out for past in recent):
        return f"a retrain was carried out within the last {cooldown} batches (drift.cooldown)"
    return None


def _rung(report: DriftReport, settings: DriftSettings) -> tuple[Action, tuple[str, ...]]:
    drifted = _exceeded(report, *SHIFT_MEASURES)
    harm = deciding_measures(report.measures)
    harmed = [
        measure
        for measure in harm
        if measure.exceeded or (drifted and measure.exceeded_uncorrected)
    ]
    broken = _exceeded(report, *LIMITS)
    if harmed or broken:
        return "retrain", tuple(map(measure_text, (*harmed, *broken, *(drifted if harmed else ()))))
    reasons = tuple(map(measure_text, report.exceeded))
    if not reasons:
        return "add", (_no_drift(report, settings),)
    last = {measure.name: measure for measure in harm}  # of the window, where there is one
    no_harm = f"no harm: {', '.join(map(measure_text, last.values()))}"
    return "add", (
        *reasons,
        no_harm
        if last
        else f"harm is unknown: neither {MADE_QUERIES} nor {ASKED_QUERIES} was measured",
    )


def _exceeded(report: DriftReport, *names: str) -> list[TestResult]:
    return [measure for measure in report.of(*names) if measure.exceeded]


def _no_drift(report: DriftReport, settings: DriftSettings) -> str:
    size = max(report.documents, report.window_documents)
    if size < settings.minimum_batch:
        return f"too few documents to measure: {size} so far, drift.minimum_batch is {settings.minimum_batch}"
    if len(report.measures) == 1:
        return f"{measure_text(report.measures[0])}, and nothing else was measured"
    return f"none of {len(report.measures)} measures is beyond its threshold"


def measure_text(measure: TestResult) -> str:
    """A measure beside its threshold, in words.

    >>> measure_text(TestResult("growth", 0.6, 0.5, {}, True, {}))
    'growth 0.6000 is above 0.5000'
    >>> measure_text(TestResult("new_quality", -0.01, -0.02, {}, False, {}, tail="low", scope="window"))
    'new_quality (window) -0.0100 is not below -0.0200'
    """
    side = "above" if measure.tail == "high" else "below"
    if measure.exceeded_uncorrected and not measure.exceeded:
        return f"{measure.label} {measure.value:.4f} is {side} what it would be by chance, had only harm been measured"
    return f"{measure.label} {measure.value:.4f} is {'' if measure.exceeded else 'not '}{side} {measure.threshold:.4f}"
