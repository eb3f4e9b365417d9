"""What follows from a pilot: by hand a note in the ledger; where drift asked, also a retrain if one is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestration import parameters
from orchestration.file_lock import file_lock
from orchestration.freshness_steps import (
    ASKED_BY,
    NO_PILOT,
    PILOTED,
    REMEMBERED,
    RETRAIN,
    asking_retriever,
    open_pilot,
    pilot_name,
    pilot_of,
    settled,
)
from orchestration.ledgers import open_ledger
from orchestration.project import Project
from orchestration.retraining.pilot import LOCK, WAITING, NoPilot, PilotResult, pilot

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

Show = Callable[[str], Any]
SETTLED = "nothing: no report waits for the answer"


def pilot_by_hand(project: Project, documents: int, show: Show = print) -> PilotResult:
    """A pilot whose answer is noted in the ledger and asks for nothing; raises as `pilot` does."""
    result = pilot(project, documents, show)
    open_ledger(project, result.plan.retriever).record_decision(PILOTED, result.summary, result.details)
    return result


def pilot_for_drift(project: Project, key: str, show: Show = print) -> str:
    """The pilot that a drift report called for, on `drift.pilot_documents`: if a retrain is due by it, that is asked
    for in the ledger as if the report had. The answer in words.

    key: of the step. FreshetError if a stage fails. Nothing is done where no report waits for the answer any more.
    """
    with file_lock(project.state / LOCK, WAITING):
        asker = asking_retriever(project, key)
        ledger = open_ledger(project, asker) if asker else None
        asked = open_pilot(ledger.last_decisions(REMEMBERED)) if ledger else None
        if ledger is None or asked is None or pilot_name(asked) != pilot_of(key):
            return SETTLED
        try:
            result = pilot(project, _documents(project, asker), show)
        except NoPilot as why:
            ledger.record_decision(NO_PILOT, str(why), {"key": key})
            return f"no pilot: {why}"
        _record(ledger, asked, result, key)
        return result.summary


def _documents(project: Project, asker: str | None) -> int:
    """How many to train on; NoPilot where none is wanted."""
    from model_code.live.collection import default_retriever

    documents = parameters.load(project.params_file).drift.pilot_documents
    if documents is None:
        raise NoPilot("drift.pilot_documents is null")
    if asker != (searched := default_retriever(project.live)):
        raise NoPilot(f"{searched} is searched now, and drift of {asker} called for it")
    return documents


def _record(ledger: Ledger, asked: dict[str, Any], result: PilotResult, key: str) -> None:
    """The answer; before it, so that a kill in between loses none, the retrain. None where one was asked for or ended
    while the pilot trained."""
    if result.verdict.passed and not settled(asked, ledger.last_decisions(REMEMBERED)):
        details = {"batch": asked["details"]["batch"], ASKED_BY: asked["id"]}
        ledger.record_decision(RETRAIN, result.summary, details)
    ledger.record_decision(PILOTED, result.summary, result.details | {"key": key})
