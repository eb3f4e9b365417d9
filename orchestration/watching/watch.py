"""Measure what was added since the last report, decide what it calls for, and keep both in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from model_code.drift.ladder import Decision, Past, decide
from model_code.drift.report import Arrivals, Report, make_report
from model_code.errors import FreshetError
from model_code.live.searcher import Searcher
from model_code.live.trained import added_since_training
from orchestration import parameters
from orchestration.file_lock import file_lock
from orchestration.freshness_steps import (
    ADD,
    ASKED_BY,
    PILOT,
    PROMOTED,
    REFUSED,
    REMEMBERED,
    RETRAIN,
    asked_by,
    is_open,
    retrain_outcomes,
)
from orchestration.ledgers import existing_ledger
from orchestration.project import Project
from orchestration.service import query_log
from orchestration.watching.batches import batches, trained_until
from orchestration.watching.gathering import Gatherer
from orchestration.watching.protected import protected_scores
from orchestration.watching.reference import calibration_of

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

LOCK = "drift.lock"  # in the project's state: two that measure at once would report the same events twice


@dataclass(frozen=True)
class Watched:
    """A report and what it calls for; `batch`: the first and the last event that are new since the report before."""

    report: Report
    decision: Decision
    batch: tuple[int, int]

    @property
    def tripped(self) -> tuple[str, ...]:
        """The measures beyond their thresholds."""
        return tuple(one.label for one in self.report.tripped)

    @property
    def text(self) -> str:
        """Every value beside its threshold, and the decision."""
        return self.report.text + self.decision.text


def watch(project: Project, record: bool = True) -> Watched | None:
    """Measure, decide, keep both; None if fewer than `drift.minimum_batch` documents were added since the last report.

    Queries that the service logged meanwhile are measured beside them. record=False: a dry run, kept nowhere, of
    however few documents or queries; None if there is neither. Others that watch at the same time wait.
    """
    with file_lock(project.state / LOCK):
        return _watch(project, record)


def _watch(project: Project, record: bool) -> Watched | None:
    settings, searcher = parameters.load(project.params_file), Searcher.open(project.live)
    ledger = existing_ledger(project, searcher.generation.retriever)
    if ledger is None and (record or not query_log.is_kept(project.state)):
        return None
    generation = searcher.generation
    *earlier, newest = batches(ledger, settings.drift.window, generation.watermark, trained_until(generation))
    gatherer = Gatherer(project, searcher, settings, ledger, asked_since=(*earlier, newest)[0].after)
    arrived = gatherer.arrivals(newest)
    if not _enough(arrived, settings.drift.minimum_batch if record else 1, record):
        return None
    arrivals = [*map(gatherer.arrivals, earlier), arrived]
    calibration = calibration_of(project, searcher, settings, arrivals, gatherer.answers)
    protected = protected_scores(searcher, calibration.reference, gatherer.answers)
    report = make_report(calibration, arrivals, len(added_since_training(searcher.generation)), protected)
    decision = decide(report, past(ledger), settings.drift, dry_run=not record)
    watched = Watched(report, decision, (newest.first, newest.last))
    if record and ledger is not None:
        ledger.record_drift({"report": report.as_dict(), "decision": decision.as_dict()}, watched.batch)
        ledger.record_decision(decision.action, "; ".join(decision.reasons), _details(watched))
    return watched


def _details(watched: Watched) -> dict[str, Any]:
    return {"batch": list(watched.batch)} | ({PILOT: True} if watched.decision.pilot else {})


def _enough(arrived: Arrivals, least: int, record: bool) -> bool:
    asked = 0 if record or arrived.queries is None else len(arrived.queries)
    return max(len(arrived.vectors), asked) >= least


def past(ledger: Ledger | None) -> list[Past]:
    """What was decided for earlier batches and whether it was done, oldest first, as the cooldown counts them.

    A step that was carried out stands where it took effect: behind the batches that were measured until then.
    """
    decisions = ledger.last_decisions(REMEMBERED) if ledger else []
    outcomes = retrain_outcomes(decisions)
    history: dict[int, Past] = {}
    for one in reversed(decisions):
        kind = one["kind"]
        if kind in (ADD, RETRAIN) and "batch" in one["details"]:
            waits = kind == RETRAIN and one["id"] == max(outcomes) and is_open(outcomes[one["id"]])
            by_pilot = history.pop(one["details"].get(ASKED_BY), None)  # of the same batch: the higher step counts
            pilot = by_pilot is not None or PILOT in one["details"]
            history[one["id"]] = Past(kind, carried_out=kind == ADD, waits=waits, pilot=pilot)
        elif kind in (PROMOTED, REFUSED):
            asked = asked_by(one, {known: step for known, step in history.items() if step.action == RETRAIN})
            if asked in history:
                history[asked] = replace(history.pop(asked), carried_out=True, waits=False)
            elif kind == PROMOTED:  # nobody asked for it here: a person did, or drift when another one was the default
                history[one["id"]] = Past(RETRAIN)
    return list(history.values())


def required(watched: Watched | None, record: bool = True) -> Watched:
    """The report; FreshetError if there is none because too little was added. record: as `watch` was asked."""
    if watched is None and not record:
        raise FreshetError(
            "nothing was added since the last report, so there is nothing to measure; one document is enough for "
            "--explain, and logged queries also by themselves"
        )
    if watched is None:
        raise FreshetError(
            "fewer than drift.minimum_batch documents were added since the last report, so nothing is measured yet; "
            "--explain measures however few there are, and logged queries also by themselves"
        )
    return watched


def as_dict(watched: Watched) -> dict[str, Any]:
    """Report, decision and batch as plain values."""
    return {
        "report": watched.report.as_dict(),
        "decision": watched.decision.as_dict(),
        "batch": list(watched.batch),
    }
