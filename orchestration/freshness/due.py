"""Work that is due: what the sensor starts next, and what is noted when a run of it fails or is canceled."""

from __future__ import annotations

from dataclasses import dataclass

from model_code.ledger.work import EventRange, Work, WorkKind, WorkState
from model_code.live.collection import Collection, default_retriever, retrievers
from orchestration.live.collection import subscribers
from orchestration.live.ledger import backlog_of, existing_ledger, own_ledger, standing_of
from orchestration.project import Project


@dataclass(frozen=True)
class Account:
    """What stands between arrival and being found: changes that wait, and for how many seconds the oldest does.

    measured: the last event that a drift report looked at, or that the retriever was trained with; unmeasured: changes
    that are searched, and that none has looked at yet.
    """

    generation: int
    documents: int
    waiting: int = 0
    oldest: float = 0.0
    measured: int = 0
    unmeasured: int = 0


def account(project: Project) -> Account | None:
    """That of the default retriever; None where nothing is live. FreshetError if its log is lost."""
    if not retrievers(project.live):
        return None
    current = Collection(project.live, default_retriever(project.live)).current()
    numbers = current.number, current.manifest["documents"]
    ledger = own_ledger(project, current)
    if ledger is None:
        return Account(*numbers)
    with ledger:
        standing, waits = standing_of(ledger, current), backlog_of(ledger, current)
        reports = ledger.last_drift(1)
        measured = max(standing.trained, *(report["last_event"] for report in reports), 0)
        number, seconds = (waits.number, waits.seconds) if waits else (0, None)
        return Account(*numbers, number, seconds or 0.0, measured, max(0, current.watermark - measured))


def due_work(project: Project) -> list[Work]:
    """The work that waits or runs, additions first; none where nothing is live or nothing arrived.

    Where changes wait, an addition is asked for. What one retriever's drift called for is not due while another one is
    searched by default.
    """
    if not retrievers(project.live):
        return []
    addition = _due_addition(project)
    default = default_retriever(project.live)
    ledger = existing_ledger(project, default)
    if ledger is None:
        return []
    with ledger:
        return [*addition, *ledger.work.open(default, WorkKind.PILOT), *ledger.work.open(default, WorkKind.RETRAIN)]


def _due_addition(project: Project) -> list[Work]:
    """An addition, if changes wait for the default retriever or, when it has them, for another one that follows it."""
    for number, name in enumerate(subscribers(project)):
        ledger = existing_ledger(project, name)
        if ledger is None:
            return []
        with ledger:
            backlog = backlog_of(ledger, Collection(project.live, name).current())
            about = EventRange(backlog.first, backlog.last) if backlog else None
            ledger.work.keep_only(WorkKind.ADD, name, about)
            if backlog and about:
                reason = f"{backlog.number} changes wait" + f" for {name}" * (number > 0)
                work = ledger.work.ask(WorkKind.ADD, name, about, reason, asked_by="sensor")
                return [] if work is None else [work]
    return []


def note_end(project: Project, run_key: str, run_id: str, outcome: str, canceled: bool) -> None:
    """Note that the run of this key failed, so that its work is tried again, or that a person canceled it.

    A canceled addition is tried again, as what arrived is to be found. Runs of other work, and of what ended already
    (such as a retrain that the gate refused), are nobody's business.
    """
    ledger = existing_ledger(project, "")
    if ledger is None:
        return
    with ledger:
        work = ledger.work.of_run(run_key)
        if work is None:
            return
        if canceled and work.kind != WorkKind.ADD:
            ledger.work.end(work, WorkState.CANCELED, outcome, run_id)
        else:
            ledger.work.fail(work, outcome, run_id)
