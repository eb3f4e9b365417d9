"""Describe the state of the freshness loop in words.

The freshness loop is the sequence of steps from the arrival of documents to a retrain. This module
collects the state, the time and the reason of each step for the pages that show them. It only
reads; it requests no task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.generations.refinements import (
    refinement_statuses,
    summarize_refinements,
)
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.index.status import deciding_report, describe_unmeasured
from model_code.collection.ledger.events import EventKind, EventState
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import LedgerView
from model_code.collection.ledger.tasks import Task, TaskKind, TaskState
from model_code.drift.statuses import Status
from model_code.files import MANIFEST
from model_code.project import Project
from orchestration import parameters
from orchestration.registry import history

# Number of the newest events of the ledger that are read to find recent documents.
MAX_RECENT_EVENTS = 200
MAX_RECENT_DOCUMENTS = 5
# Number of the newest tasks that are read to find the last task of each kind.
MAX_TASKS = 20
NOTHING_ARRIVED = "nothing has arrived yet"


@dataclass(frozen=True)
class LoopStep:
    """The state of one step of the freshness loop.

    Attributes:
        name: Name of the step.
        state: "done", "running", "waits" for more changes, or "none" if the step was not needed.
        text: What happened and why, in a few sentences.
        when: Time of the step, in seconds since 1970; None if it did not happen.
    """

    name: str
    state: str
    text: str
    when: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the step as values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class RecentDocument:
    """A document that arrived lately and is searchable.

    Attributes:
        document_id: Id of the document.
        title: Title of the document.
        received: Time of arrival, in seconds since 1970.
    """

    document_id: str
    title: str
    received: float


def loop_steps(project: Project) -> list[LoopStep]:
    """Return the steps of the freshness loop in their order; an empty list if nothing is live."""
    if not retrievers(project.live):
        return []
    retriever = default_retriever(project.live)
    generation = GenerationStore(project.live, retriever).current()
    ledger = open_ledger_if_exists(project, retriever)
    if ledger is None:
        return [LoopStep("arrived", "none", NOTHING_ARRIVED), _gate_step(project)]

    with ledger:
        view = ledger.view_at(generation.cursor)
        tasks = ledger.tasks.last(retriever, MAX_TASKS)
        steps = [_arrived_step(view, ledger)]
        # Before anything arrives, there is nothing to tell about additions.
        if ledger.position().event:
            steps.append(_added_step(view, generation))
        steps += [
            _drift_step(project, ledger, tasks),
            _task_step("retune", TaskKind.RETUNE, tasks, "no drift check called for one"),
            _task_step("pilot", TaskKind.PILOT, tasks, "no drift check called for one"),
            _task_step(
                "retrain", TaskKind.RETRAIN, tasks, "no drift check or pilot called for one"
            ),
            _gate_step(project),
        ]
    return steps


def recent_documents(project: Project) -> list[RecentDocument]:
    """Return the searchable documents that arrived last, newest first."""
    if not retrievers(project.live):
        return []
    retriever = default_retriever(project.live)
    ledger = open_ledger_if_exists(project, retriever)
    if ledger is None:
        return []
    with ledger:
        last = ledger.position().event
        first = max(1, last - MAX_RECENT_EVENTS)
        view = ledger.view_at(GenerationStore(project.live, retriever).current().cursor)
        recent: list[RecentDocument] = []
        for event in reversed(view.events(first, last)):
            # A put adds or changes a document. It is live if no later event replaced it.
            is_live = event.kind == EventKind.PUT and event.state == EventState.LIVE
            if is_live and event.document is not None:
                document = event.document
                title = document.title or document.document_id
                recent.append(RecentDocument(document.document_id, title, event.received))
            if len(recent) == MAX_RECENT_DOCUMENTS:
                break
    return recent


def _arrived_step(view: LedgerView, ledger: Ledger) -> LoopStep:
    """Describe how many changes arrived, and how many of them are not searchable yet."""
    backlog = view.backlog()
    # Events are numbered from 1, so the last id is also their number.
    last = ledger.position().event
    if last == 0:
        return LoopStep("arrived", "none", NOTHING_ARRIVED)
    events = view.events(last, last)
    when = events[0].received if events else None
    text = f"{last:,} changes since the first one"
    if backlog.number:
        return LoopStep("arrived", "waits", f"{text}; {backlog.number:,} wait to be added", when)
    return LoopStep("arrived", "done", f"{text}; none waits", when)


def _added_step(view: LedgerView, generation: Generation) -> LoopStep:
    """Describe how many documents are searchable, added, refined by IncDSI, and refused.

    The vector of a refined document was solved by IncDSI instead of being its plain encoding.
    """
    counts = view.counts()
    live = counts.get(EventState.LIVE, 0)
    text = f"{generation.manifest['documents']:,} documents are searchable, {live:,} of them added"
    statuses = refinement_statuses(generation).values()
    refined = len([status for status in statuses if status != Status.NOT_REFINED.name])
    if refined:
        text += f", {refined:,} refined"
    rejected = counts.get(EventState.REJECTED, 0)
    if rejected:
        text += f"; {rejected:,} rows were refused"
    summary = summarize_refinements(generation)
    if summary is not None:
        text += f". {summary.sentence()}"
    return LoopStep("added", "done", text, (generation.folder / MANIFEST).stat().st_mtime)


def _drift_step(project: Project, ledger: Ledger, tasks: list[Task]) -> LoopStep:
    """Describe the newest drift report, and the earlier one that called for an action, if any.

    Args:
        project: The project.
        ledger: The ledger, opened for the default retriever.
        tasks: The newest tasks of the retriever.
    """
    reports = ledger.recent_drift_reports(1)
    is_open = any(
        task.kind == TaskKind.DRIFT_CHECK and task.state == TaskState.OPEN for task in tasks
    )
    if not reports:
        minimum = parameters.load(project.params_file).drift.minimum_batch
        text = f"not measured yet: a check needs {minimum:,} added documents (drift.minimum_batch)"
        state = "running" if is_open else "none"
        return LoopStep("drift", state, text)

    newest = reports[0]
    text = _describe_report(newest["report"])
    # The newest report may have had too few documents to decide, while a task of an earlier one is
    # still open.
    deciding = deciding_report(project)
    if deciding is not None and deciding.action not in text:
        headline = deciding.text.splitlines()[0]
        text += f". Earlier: {headline}: {'; '.join(deciding.reasons)}"
    state = "running" if is_open else "done"
    return LoopStep("drift", state, text, newest["recorded"])


def _describe_report(record: Mapping[str, Any]) -> str:
    """Describe a drift report: its decision, the reasons, and the measures that are missing.

    Args:
        record: The report and the decision as the ledger holds them; see `DriftCheck.as_dict`.
    """
    decision = record["decision"]
    text = f"{decision['action']}: {'; '.join(decision['reasons'])}"
    unmeasured = describe_unmeasured(record["report"]["unmeasured"])
    if unmeasured:
        text += f". Not measurable yet: {unmeasured}"
    return text


def _task_step(name: str, kind: TaskKind, tasks: list[Task], otherwise: str) -> LoopStep:
    """Describe the last task of a kind, which is work that the ledger records as due.

    Args:
        name: Name of the step.
        kind: Kind of the task.
        tasks: The newest tasks of the retriever, newest first.
        otherwise: Why there is no such task, for the text of the step.
    """
    for task in tasks:
        if task.kind != kind:
            continue
        if task.state == TaskState.OPEN:
            return LoopStep(name, "running", f"requested: {task.reason}", task.requested)
        text = task.outcome or task.reason
        return LoopStep(name, "done", f"{task.state}: {text}", task.ended)
    return LoopStep(name, "none", otherwise)


def _gate_step(project: Project) -> LoopStep:
    """Describe the last verdict of the gate, the test that decides about a promotion."""
    last = history.last_verdict(project)
    if last is None:
        return LoopStep("gate", "none", "no version asked to be promoted yet")
    verdict = last["verdict"]
    reasons = "; ".join(verdict["reasons"])
    text = f"version {last['to']} {_gate_outcome(last)}: {reasons}"
    when = datetime.fromisoformat(last["when"]).astimezone(UTC).timestamp()
    return LoopStep("gate", "done", text, when)


def _gate_outcome(line: Mapping[str, Any]) -> str:
    """Return what happened to the version that the gate judged, as the end of a sentence.

    Args:
        line: A line of the history of promotions, with a verdict.
    """
    if line["action"] == "promote":
        return "became champion"
    if line["action"] == "moved by hand":
        agreement = "with" if line["verdict"]["passed"] else "against"
        return f"was made champion by hand, {agreement} the gate"
    return "was refused"
