"""Work that is due: what the sensor starts next, and what is noted when a run of it fails or is
canceled.

And what a person should hear of, and telling it: a full disk, changes that wait, drift, failed
work, a refused gate.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.index.live_index import live_retrievers
from model_code.collection.index.project_ledger import (
    backlog_of,
    open_ledger_if_exists,
    open_matching_ledger,
)
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import EventRange, Task, TaskKind, TaskState
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
    current = GenerationStore(project.live, default_retriever(project.live)).current()
    numbers = current.number, current.manifest["documents"]
    ledger = open_matching_ledger(project, current)
    if ledger is None:
        return IngestBacklog(*numbers)
    with ledger:
        cursor, waits = current.cursor, backlog_of(ledger, current)
        looked = [report["last_event"] for report in ledger.recent_drift_reports(1)]
        looks = ledger.tasks.last(current.retriever, LAST_LOOKS, TaskKind.DRIFT_CHECK)
        looked += [
            look.event_range.last
            for look in looks
            if look.event_range and look.state == TaskState.REFUSED
        ]
        measured = max(cursor.trained, *looked, 0)
        number, seconds = (waits.number, waits.seconds) if waits else (0, None)
        return IngestBacklog(
            *numbers, number, seconds or 0.0, measured, max(0, current.watermark - measured)
        )


def request_due_tasks(project: Project) -> list[Task]:
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
        addition, work = _due_addition(project, ledger), ledger.tasks
        due = [
            *addition,
            *work.open(default, TaskKind.PILOT),
            *work.open(default, TaskKind.RETRAIN),
        ]
        return due or _due_look(project, ledger, default)


def _due_addition(project: Project, ledger: Ledger) -> list[Task]:
    """An addition, if changes wait for the default retriever or, when it has them, for another one
    that follows it.
    """
    for number, name in enumerate(live_retrievers(project)):
        backlog = backlog_of(ledger, GenerationStore(project.live, name).current())
        about = EventRange(backlog.first, backlog.last) if backlog else None
        ledger.tasks.close_others(TaskKind.ADD, name, about)
        if backlog and about:
            reason = f"{backlog.number} changes wait" + f" for {name}" * (number > 0)
            work = ledger.tasks.request(TaskKind.ADD, name, about, reason, requested_by="sensor")
            return [] if work is None else [work]
    return []


def _due_look(project: Project, ledger: Ledger, retriever: str) -> list[Task]:
    """A look at drift of the default `retriever`, if enough changes wait for one; with as many more
    it is another.
    """
    stands, minimum = (
        ingest_backlog(project),
        parameters.load(project.params_file).drift.minimum_batch,
    )
    number = stands.unmeasured // minimum * minimum if stands else 0
    about = EventRange(stands.measured + 1, stands.measured + number) if stands and number else None
    for name in {
        retriever,
        *(look.retriever for look in ledger.tasks.open(None, TaskKind.DRIFT_CHECK)),
    }:
        ledger.tasks.close_others(TaskKind.DRIFT_CHECK, name, about if name == retriever else None)
    reason = f"{number} changes or more since the last look at drift"
    work = about and ledger.tasks.request(
        TaskKind.DRIFT_CHECK, retriever, about, reason, requested_by="sensor"
    )
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
        work = ledger.tasks.find_by_run_key(run_key)
        if work is None:
            return
        if canceled and work.kind != TaskKind.ADD:
            ledger.tasks.end(work, TaskState.CANCELED, outcome, run_id)
        else:
            ledger.tasks.fail(work, outcome, run_id)
