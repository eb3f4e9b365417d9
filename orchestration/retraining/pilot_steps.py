"""What follows from a pilot: by hand a note in the ledger; where drift asked, also a retrain if one is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestration import parameters
from orchestration.freshness_steps import NO_PILOT, PILOTED, REMEMBERED, RETRAIN, open_pilot, pilot_name
from orchestration.project import Project
from orchestration.retraining.pilot import NoPilot, PilotResult, ledger_of, pilot

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

SETTLED = "nothing: what the report asked is settled, or another retriever is searched now"


def pilot_by_hand(project: Project, documents: int, show: Callable[[str], Any] = print) -> PilotResult:
    """A pilot whose answer is noted in the ledger and asks for nothing; raises as `pilot` does."""
    result = pilot(project, documents, show)
    ledger_of(project, result.plan.retriever).record_decision(PILOTED, result.summary, result.details)
    return result


def pilot_for_drift(project: Project, key: str, show: Callable[[str], Any] = print) -> str:
    """The pilot that a drift report asked for, on `drift.pilot_documents`: if a retrain is due by it, that is asked for
    in the ledger as if the report had. The answer in words.

    key: of the step. FreshetError if a stage fails. Where the question is settled meanwhile, nothing is done.
    """
    from model_code.live.collection import default_retriever

    ledger = ledger_of(project, default_retriever(project.live))
    report, documents = _asked(ledger, key), parameters.load(project.params_file).drift.pilot_documents
    if report is None:
        return SETTLED
    try:
        if documents is None:
            raise NoPilot("drift.pilot_documents is null")
        result = pilot(project, documents, show)
    except NoPilot as why:
        ledger.record_decision(NO_PILOT, str(why), {"key": key})
        return f"no pilot: {why}"
    _record(ledger, result, key)
    return result.summary


def _asked(ledger: Ledger, key: str) -> dict[str, Any] | None:
    """The decision that asked for the pilot of this key, if it is open."""
    asked = open_pilot(ledger.last_decisions(REMEMBERED))
    return asked if asked and pilot_name(asked) == key.rpartition("-")[0] else None


def _record(ledger: Ledger, result: PilotResult, key: str) -> None:
    """The answer; before it, so that a kill in between loses none, the retrain. None where one was asked for or ended
    while the pilot trained."""
    asked = _asked(ledger, key)
    if asked is not None and result.verdict.passed:
        ledger.record_decision(RETRAIN, result.summary, {"batch": asked["details"]["batch"]})
    ledger.record_decision(PILOTED, result.summary, result.details | {"key": key})
