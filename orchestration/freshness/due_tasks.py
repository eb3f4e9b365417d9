"""Work that is due: what the sensor starts next, and what is noted when a run of it fails or is
canceled.

And what a person should hear of, and telling it: a full disk, changes that wait, drift, failed
work, a refused gate.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_code.collection.generations.generation_store import (
    Collection,
    default_retriever,
    retrievers,
)
from model_code.collection.index.live_index import live_retrievers
from model_code.collection.index.project_ledger import (
    backlog_of,
    open_ledger_if_exists,
    open_matching_ledger,
    standing_of,
)
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import EventRange, Work, WorkKind, WorkState
from model_code.project import Project
from orchestration import parameters

LAST_LOOKS = 9  # at drift, of which the last that brought too few documents is wanted


@dataclass(frozen=True)
class IngestBacklog:
    """What stands between arrival and being found: changes that wait, and for how many seconds the
    oldest does.

    measured: the last event that a drift report looked at, that was looked at and brought too few
    documents for one, or that the retriever was trained with; unmeasured: changes that are
    searched, and that none has looked at yet.
    """

    generation: int
    documents: int
    waiting: int = 0
    oldest: float = 0.0
    measured: int = 0
    unmeasured: int = 0


def ingest_backlog(project: Project) -> IngestBacklog | None:
    """That of the default retriever; None where nothing is live. FreshetError if its log is lost."""
    if not retrievers(project.live):
        return None
    current = Collection(project.live, default_retriever(project.live)).current()
    numbers = current.number, current.manifest["documents"]
    ledger = open_matching_ledger(project, current)
    if ledger is None:
        return IngestBacklog(*numbers)
    with ledger:
        standing, waits = standing_of(ledger, current), backlog_of(ledger, current)
        looked = [report["last_event"] for report in ledger.last_drift(1)]
        looks = ledger.work.last(current.retriever, LAST_LOOKS, WorkKind.DRIFT)
        looked += [
            look.about.last for look in looks if look.about and look.state == WorkState.REFUSED
        ]
        measured = max(standing.trained, *looked, 0)
        number, seconds = (waits.number, waits.seconds) if waits else (0, None)
        return IngestBacklog(
            *numbers, number, seconds or 0.0, measured, max(0, current.watermark - measured)
        )


def request_due_tasks(project: Project) -> list[Work]:
    """The work that waits or runs, additions first; none where nothing is live or nothing arrived.

    Where changes wait, an addition is asked for; where nothing is due, a look at drift of what
    nobody looked at. What one retriever's drift called for is not due while another one is searched
    by default.
    """
    if not retrievers(project.live):
        return []
    ledger, default = open_ledger_if_exists(project), default_retriever(project.live)
    if ledger is None:
        return []
    with ledger:
        addition, work = _due_addition(project, ledger), ledger.work
        due = [
            *addition,
            *work.open(default, WorkKind.PILOT),
            *work.open(default, WorkKind.RETRAIN),
        ]
        return due or _due_look(project, ledger, default)


def _due_addition(project: Project, ledger: Ledger) -> list[Work]:
    """An addition, if changes wait for the default retriever or, when it has them, for another one
    that follows it.
    """
    for number, name in enumerate(live_retrievers(project)):
        backlog = backlog_of(ledger, Collection(project.live, name).current())
        about = EventRange(backlog.first, backlog.last) if backlog else None
        ledger.work.keep_only(WorkKind.ADD, name, about)
        if backlog and about:
            reason = f"{backlog.number} changes wait" + f" for {name}" * (number > 0)
            work = ledger.work.ask(WorkKind.ADD, name, about, reason, asked_by="sensor")
            return [] if work is None else [work]
    return []


def _due_look(project: Project, ledger: Ledger, retriever: str) -> list[Work]:
    """A look at drift of the default `retriever`, if enough changes wait for one; with as many more
    it is another.
    """
    stands, minimum = (
        ingest_backlog(project),
        parameters.load(project.params_file).drift.minimum_batch,
    )
    number = stands.unmeasured // minimum * minimum if stands else 0
    about = EventRange(stands.measured + 1, stands.measured + number) if stands and number else None
    for name in {retriever, *(look.retriever for look in ledger.work.open(None, WorkKind.DRIFT))}:
        ledger.work.keep_only(WorkKind.DRIFT, name, about if name == retriever else None)
    reason = f"{number} changes or more since the last look at drift"
    work = about and ledger.work.ask(WorkKind.DRIFT, retriever, about, reason, asked_by="sensor")
    return [work] if work else []


def record_run_end(
    project: Project, run_key: str, run_id: str, outcome: str, canceled: bool
) -> None:
    """Note that the run of this key failed, so that its work is tried again, or that a person
    canceled it.

    A canceled addition is tried again, as what arrived is to be found. Runs of other work, and of
    what ended already (such as a retrain that the gate refused), are nobody's business.
    """
    ledger = open_ledger_if_exists(project, "")
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
