"""The ladder add -> pilot -> retrain: what a drift report calls for.

*Retrain* on harm, which retraining mends: new documents found significantly worse than old ones, by the queries that
they arrived with or, where too few have such, by those made from them; additions that push old documents down by more
than growth alone would; constraints that conflict; growth past its limit.
Where the vectors drifted, harm is tested a second time, with all of alpha for its own measures: that test counts only
once a test of the corrected family has tripped, so documents like the old ones still cause a false alarm with a chance
of at most alpha (a gatekeeping procedure), others that are no worse too, and drift with harm is found sooner.
*Add* otherwise, even where vectors drifted or the hierarchy fits no longer: an encoder may serve new topics well.
Logged queries that drifted are reported, and count like drifted vectors: nobody judged their answers, so they are no
harm by themselves.
Beside adding, a *pilot* is called for where documents drifted and the queries that they came with show no harm: found
as well as old ones, they may still be found worse than training would find them, which only a training on some of them
tells. A retrain follows if it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from model_code.drift.measured import ASKED, MADE, Measured, deciding
from model_code.drift.observations import OF_QUERIES
from model_code.drift.report import Report
from model_code.drift.settings import DriftSettings

Action = Literal["add", "retrain"]
OF_DOCUMENTS = ("domain_auc", "mmd")
EMBEDDING = (*OF_DOCUMENTS, *OF_QUERIES)
FITTING = ("topics", "fit")
PILOT_DUE = "documents moved, and the queries that came with them show no harm: whether training helps, a pilot tells"
LIMITS = ("conflicts", "growth", "protected_old", "protected_new")


@dataclass(frozen=True)
class Past:
    """What was decided for an earlier batch, and whether it was carried out and succeeded.

    waits: it is under way, or will be tried again. pilot: one was called for beside it, whatever came of that.
    """

    action: Action
    carried_out: bool = True
    waits: bool = False
    pilot: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do, and why. wanted: what the measures call for, which a cooldown may hold back.

    dry_run: nobody is to act on it. pilot: beside `action`, a training on a sample is to tell whether a retrain is due.
    """

    action: Action
    reasons: tuple[str, ...]
    wanted: Action
    dry_run: bool = False
    pilot: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The decision as JSON-able values."""
        return asdict(self)


def decide(report: Report, history: Sequence[Past], settings: DriftSettings, dry_run: bool = False) -> Decision:
    """The rung for `report`. history: one entry per earlier batch, oldest first.

    A retrain is held back if one waits, or was carried out in the last `settings.cooldown` batches: its effect is not
    measured yet. One that failed for good or was a dry run does not hold anything back.
    """
    wanted, reasons = _wanted(report, settings)
    held = _held_back(history, settings.cooldown) if wanted == "retrain" else None
    pilot = wanted != "retrain" and _pilot_due(report, history, settings)
    how = f"{PILOT_DUE} (the sensor starts it; by hand, freshet retrain --pilot {settings.pilot_documents})"
    reasons += (f"held back: {held}",) * (held is not None) + (how,) * pilot
    return Decision(wanted if held is None else "add", reasons, wanted, dry_run, pilot)


def _pilot_due(report: Report, history: Sequence[Past], settings: DriftSettings) -> bool:
    """Whether harm is in doubt, no pilot was called for in the last batches, and no retrain holds one back."""
    in_doubt = bool(report.of(ASKED)) and any(one.tripped for one in report.of(*OF_DOCUMENTS))
    if not in_doubt or settings.pilot_documents is None:
        return False
    recent = history[-settings.cooldown :] if settings.cooldown else ()
    return not any(past.pilot for past in recent) and not _held_back(history, settings.cooldown)


def _held_back(history: Sequence[Past], cooldown: int) -> str | None:
    """Why a retrain must wait, if it must."""
    if any(past.waits for past in history):
        return "a retrain was asked for before and is not settled yet"
    recent = history[-cooldown:] if cooldown else ()
    if any(past.action == "retrain" and past.carried_out for past in recent):
        return f"a retrain was carried out within the last {cooldown} batches (drift.cooldown)"
    return None


def _wanted(report: Report, settings: DriftSettings) -> tuple[Action, tuple[str, ...]]:
    drifted = [one for one in report.of(*EMBEDDING) if one.tripped]
    harm = deciding(report.measures)
    harmed = [one for one in harm if one.tripped or (drifted and one.suspected)]
    broken = [one for one in report.of(*LIMITS) if one.tripped]
    if harmed or broken:
        shown = (*harmed, *broken, *(drifted if harmed else ()))
        return "retrain", tuple(spoken(one) for one in shown)
    misfit = [one for one in report.of(*FITTING) if one.tripped]
    overruled = [one for one in report.of(MADE) if one.tripped]
    reasons = tuple(spoken(one) for one in (*misfit, *drifted, *overruled))
    if reasons:
        return "add", (*reasons, _harmless(harm))
    return "add", (_nothing(report, settings),)


def _harmless(harm: Sequence[Measured]) -> str:
    last = {one.name: one for one in harm}  # of the window, where there is one
    if last:
        return f"no harm: {', '.join(map(spoken, last.values()))}"
    return f"harm is unknown: neither {MADE} nor {ASKED} was measured"


def _nothing(report: Report, settings: DriftSettings) -> str:
    size = max(report.documents, report.window_documents)
    if size < settings.minimum_batch and not report.of(*OF_QUERIES):
        return f"too few documents to measure: {size} so far, drift.minimum_batch is {settings.minimum_batch}"
    if len(report.measures) == 1:
        return f"{spoken(report.measures[0])}, and nothing else was measured"
    return f"none of {len(report.measures)} measures is beyond its threshold"


def spoken(one: Measured) -> str:
    """A measure beside its threshold, in words.

    >>> spoken(Measured("growth", 0.6, 0.5, {}, True, {}))
    'growth 0.6000 is above 0.5000'
    >>> spoken(Measured("fit", -0.01, -0.02, {}, False, {}, tail="low", scope="window"))
    'fit (window) -0.0100 is not below -0.0200'
    """
    side = "above" if one.tail == "high" else "below"
    if one.suspected and not one.tripped:
        return f"{one.label} {one.value:.4f} is {side} what it would be by chance, had only harm been measured"
    return f"{one.label} {one.value:.4f} is {'' if one.tripped else 'not '}{side} {one.threshold:.4f}"
