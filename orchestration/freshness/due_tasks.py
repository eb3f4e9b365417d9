"""Request the tasks that are due, and record how their runs end.

Which tasks are due follows from the ledger alone. The Dagster sensor that calls this module keeps
no state of its own and can be stopped at any time.
"""

from __future__ import annotations

from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.generations.refinements import summarize_refinements
from model_code.collection.index.live_index import live_retrievers
from model_code.collection.index.project_ledger import backlog_of, open_ledger_if_exists
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import EventRange, Task, TaskKind, TaskState
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.backlog import events_to_check, ingest_backlog


def request_due_tasks(project: Project) -> list[Task]:
    """Request the tasks that are due for the project, and return the open tasks that may run now.

    An addition, which makes recorded changes searchable, is requested if changes are waiting. A
    drift check is requested only if nothing else is due for the default retriever. Retunes, pilots
    and retrains are requested by a drift check; this function only lists them. If another retriever
    is searched by default now, drift checks and these tasks are not due.

    Calling this again returns the same tasks until they end.

    Returns:
        The open tasks, additions first. Empty if nothing is live or nothing ever arrived.
    """
    if not retrievers(project.live):
        return []
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return []

    default = default_retriever(project.live)
    with ledger:
        tasks = _request_addition(project, ledger)
        tasks.extend(ledger.tasks.open(default, TaskKind.RETUNE))
        tasks.extend(ledger.tasks.open(default, TaskKind.PILOT))
        tasks.extend(ledger.tasks.open(default, TaskKind.RETRAIN))
        # An addition to another retriever, which may fail again and again, delays no drift check.
        if not any(task.retriever == default for task in tasks):
            tasks.extend(_request_drift_check(project, ledger, default))
        return tasks


def _request_addition(project: Project, ledger: Ledger) -> list[Task]:
    """Request an addition for the first live retriever for which changes are waiting.

    The default retriever comes first. The other live retrievers get the changes after it.
    """
    default = default_retriever(project.live)
    for retriever in live_retrievers(project):
        backlog = backlog_of(ledger, GenerationStore(project.live, retriever).current())
        if backlog is None:
            # Nothing waits, so all open additions of this retriever are closed.
            ledger.tasks.close_others(TaskKind.ADD, retriever, None)
            continue

        # One addition covers all waiting changes, so additions of fewer changes are closed.
        events = EventRange(backlog.first, backlog.last)
        ledger.tasks.close_others(TaskKind.ADD, retriever, events)

        reason = _describe_backlog(ledger, retriever, project, backlog.number, default)
        task = ledger.tasks.request(TaskKind.ADD, retriever, events, reason, requested_by="sensor")
        return [] if task is None else [task]
    return []


def _describe_backlog(
    ledger: Ledger, retriever: str, project: Project, waiting: int, default: str
) -> str:
    """Describe in words how many changes wait, and how many of them bring queries.

    A row of a document can bring queries that the document answers. IncDSI then computes a vector
    of the document that these queries find. The text also says what IncDSI did so far, for the
    documents that are searchable already.

    Args:
        ledger: The ledger.
        retriever: Retriever for which the changes wait.
        project: The project.
        waiting: Number of changes that wait.
        default: The retriever that is searched by default. Any other one is named.
    """
    reason = "1 change is waiting" if waiting == 1 else f"{waiting:,} changes are waiting"
    if retriever != default:
        reason += f" for {retriever}"

    # The cursor tells which changes of the ledger the current generation already contains.
    generation = GenerationStore(project.live, retriever).current()
    with_queries = ledger.view_at(generation.cursor).count_pending_with_queries()
    if not with_queries:
        return reason
    if with_queries == 1:
        reason += "; 1 brings queries, so IncDSI places it"
    else:
        reason += f"; {with_queries:,} bring queries, so IncDSI places them"
    refined = summarize_refinements(generation)
    if refined is not None:
        reason += f". So far, {refined.sentence()}"
    return reason


def _request_drift_check(project: Project, ledger: Ledger, retriever: str) -> list[Task]:
    """Request a drift check of the default retriever if enough events are unmeasured.

    Open drift checks of other event ranges or other retrievers are closed.
    """
    settings = parameters.load(project.params_file).drift
    events = events_to_check(ingest_backlog(project), settings)

    for check in ledger.tasks.open(None, TaskKind.DRIFT_CHECK):
        if check.retriever != retriever:
            ledger.tasks.close_others(TaskKind.DRIFT_CHECK, check.retriever, None)
    ledger.tasks.close_others(TaskKind.DRIFT_CHECK, retriever, events)
    if events is None:
        return []

    size = events.last - events.first + 1
    reason = f"at least {size} changes since the last drift check"
    task = ledger.tasks.request(
        TaskKind.DRIFT_CHECK, retriever, events, reason, requested_by="sensor"
    )
    return [] if task is None else [task]


def record_run_end(
    project: Project, run_key: str, run_id: str, outcome: str, canceled: bool
) -> None:
    """Record that the Dagster run of a task failed, or that a person canceled it.

    A task is work that the ledger records as due, such as an addition or a retrain. A failed task
    is tried again. A canceled task is not tried again, unless it is an addition: recorded changes
    must become searchable. Runs without an open task are ignored, for example runs of a retrain
    that the gate already rejected.

    Args:
        project: The project of the task.
        run_key: The task's run key, which is also the partition of the run.
        run_id: The id of the Dagster run.
        outcome: What happened, in words.
        canceled: Whether a person canceled the run.
    """
    ledger = open_ledger_if_exists(project, "")
    if ledger is None:
        return

    with ledger:
        task = ledger.tasks.find_by_run_key(run_key)
        if task is None:
            return
        if canceled and task.kind != TaskKind.ADD:
            ledger.tasks.end(task, TaskState.CANCELED, outcome, run_id)
        else:
            ledger.tasks.fail(task, outcome, run_id)
