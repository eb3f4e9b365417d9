"""Tasks: work that a project has to do, such as a drift check or a retrain, and its outcome.

A task is requested only once: while it is open, a further request returns the same task. A failed
task is tried again, up to `MAX_ATTEMPTS` times in total. Then a person has to look at it.

Task ids are random, because Dagster remembers the key of each run for ever. If the ledger is
created again, numbered tasks would have the keys of earlier runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from model_code.collection.ledger.database import Database, EventId, metadata

# Number of times that a task is tried before it counts as failed.
MAX_ATTEMPTS = 3


class TaskKind(StrEnum):
    """The kind of work of a task.

    - `ADD` makes pending events searchable.
    - `DRIFT_CHECK` compares new documents with old ones.
    - `RETUNE` chooses the weights of the live fusion again.
    - `PILOT` trains on a sample of the live documents, to tell whether a retrain would help.
    - `RETRAIN` trains on all live documents.
    """

    ADD = "add"
    DRIFT_CHECK = "drift"
    RETUNE = "retune"
    PILOT = "pilot"
    RETRAIN = "retrain"


class TaskState(StrEnum):
    """The state of a task.

    - `OPEN`: due or running.
    - `DONE`: finished, or made unnecessary by other work.
    - `REFUSED`: finished without an effect, because a check decided so: the gate,
      the pilot or the drift check.
    - `FAILED`: all attempts failed.
    - `CANCELED`: canceled by a person.
    """

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, order=True)
class EventRange:
    """The events of the ledger with ids from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True)
class Task:
    """One task for a retriever.

    Attributes:
        id: Random identity of the task.
        kind: Kind of work.
        retriever: Name of the retriever.
        event_range: Events that caused the task. None if a person started the work.
        state: Whether the task is open, or how it ended.
        attempts: Number of attempts, including the attempt that is due or running.
        reason: Why the task was requested.
        requested_by: "sensor", "drift", "person", or the id of the pilot that requested a retrain.
        requested: Time of the request, in seconds since 1970.
        run_id: Id of the last Dagster run of the task. None before the first run.
        ended: Time when the task was closed, in seconds since 1970. None if it is open.
        outcome: Outcome as a sentence. None before the first attempt ends.
        details: Outcome as values that JSON can hold.
    """

    id: str
    kind: TaskKind
    retriever: str
    event_range: EventRange | None
    state: TaskState
    attempts: int
    reason: str
    requested_by: str
    requested: float
    run_id: str | None = None
    ended: float | None = None
    outcome: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the task as plain values, under the keys that the status command prints."""
        event_range = None
        if self.event_range is not None:
            event_range = [self.event_range.first, self.event_range.last]
        return {
            "id": self.id,
            "kind": self.kind,
            "retriever": self.retriever,
            "about": event_range,
            "state": self.state,
            "attempts": self.attempts,
            "reason": self.reason,
            "asked_by": self.requested_by,
            "asked": self.requested,
            "run_id": self.run_id,
            "ended": self.ended,
            "outcome": self.outcome,
            "details": dict(self.details),
        }

    @property
    def run_key(self) -> str:
        """Key of the Dagster run of the current attempt.

        The key also names the partition and the working folder of the run. Kind and time help
        people to recognise it. The digits of the random id make it unique. No code parses it.
        """
        moment = datetime.fromtimestamp(self.requested, UTC)
        return f"{self.kind}-{moment:%Y-%m-%d-%H%M}-{self.id[-8:]}-{self.attempts}"


table = sa.Table(
    "work",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("retriever", sa.String, nullable=False),
    sa.Column("first_event", EventId),
    sa.Column("last_event", EventId),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("asked_by", sa.String, nullable=False),
    sa.Column("asked", sa.Float(53), nullable=False),
    sa.Column("run_id", sa.String),
    sa.Column("ended", sa.Float(53)),
    sa.Column("outcome", sa.Text),
    sa.Column("details", sa.JSON, nullable=False),
)
# This condition defines a partial index. SQLite uses a partial index only for a query with the same
# condition, so the value 'open' is a literal and no parameter.
IS_OPEN = table.c.state == sa.literal_column("'open'")
sa.Index(
    "work_open",
    *(table.c[name] for name in ("kind", "first_event", "last_event", "retriever")),
    unique=True,
    sqlite_where=IS_OPEN,
)


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a project; see `Ledger.tasks`.

    Every method is one transaction. If two processes request the same task at once, the first one
    creates it, and both get it.
    """

    _database: Database

    def request(
        self,
        kind: TaskKind,
        retriever: str,
        event_range: EventRange,
        reason: str,
        requested_by: str,
    ) -> Task | None:
        """Return the open task of a kind for some events, or create it.

        A request for a retrain closes the open pilots of the retriever. A pilot is not needed any
        more, because it would only tell whether a retrain would help.

        Args:
            kind: Kind of work.
            retriever: Name of the retriever.
            event_range: Events that cause the task.
            reason: Why the task is requested.
            requested_by: "sensor", "drift", "person", or the id of the pilot that requests it.

        Returns:
            The open task. None if a task of this kind for the same events failed or was canceled
            before.
        """
        with self._database.write() as connection:
            return _request(connection, kind, retriever, event_range, reason, requested_by)

    def close_others(self, kind: TaskKind, retriever: str, event_range: EventRange | None) -> None:
        """Close the open tasks of a kind, except for the task with a certain event range.

        The closed tasks are not needed any more: their work was done in another way, or the task
        that stays open includes it.

        Args:
            kind: Kind of the tasks to close.
            retriever: Name of the retriever of the tasks.
            event_range: Event range of the task that stays open. None closes all tasks.
        """
        is_other = sa.true()
        if event_range is not None:
            is_other = sa.not_(_has_range(event_range))
        values = _closing_values(TaskState.DONE, "nothing of it waits any more")
        with self._database.write() as connection:
            _update_open(
                connection, values, table.c.kind == kind, table.c.retriever == retriever, is_other
            )

    def fail(self, task: Task, outcome: str, run_id: str | None = None) -> None:
        """Record a failed attempt. The task is due again, unless this was its last attempt.

        Args:
            task: Task whose attempt failed.
            outcome: Why the attempt failed, as a sentence.
            run_id: Id of the Dagster run of the attempt.
        """
        if task.attempts >= MAX_ATTEMPTS:
            values = _closing_values(TaskState.FAILED, outcome, run_id)
        else:
            values = {"attempts": task.attempts + 1, "outcome": outcome, "run_id": run_id}
        with self._database.write() as connection:
            _update_open(connection, values, table.c.id == task.id)

    def end(
        self,
        task: Task,
        state: TaskState,
        outcome: str,
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        retrain: bool = False,
    ) -> None:
        """Close a task. A task that is closed already does not change.

        Args:
            task: Task to close.
            state: How the task ended.
            outcome: Outcome as a sentence.
            run_id: Id of the Dagster run of the attempt.
            details: Outcome as values that JSON can hold.
            retrain: Also request a retrain for the same events, unless the task was closed already.
                Both are one transaction, so that an interruption cannot lose the request.
        """
        values = _closing_values(state, outcome, run_id, details)
        with self._database.write() as connection:
            closed = _update_open(connection, values, table.c.id == task.id)
            if closed and retrain and task.event_range is not None:
                _request(
                    connection,
                    TaskKind.RETRAIN,
                    task.retriever,
                    task.event_range,
                    reason=outcome,
                    requested_by=task.id,
                )

    def close_retrains(
        self,
        retriever: str,
        state: TaskState,
        outcome: str,
        details: Mapping[str, Any],
        run_id: str | None = None,
    ) -> None:
        """Close all open retrain tasks of a retriever with the outcome of a retrain.

        If no task is open, a person started the retrain. Then a closed task is recorded, so that
        the history is complete. Open pilots, short trainings on a sample, are closed as well. If
        they are still needed, a later drift check requests a new pilot.

        Args:
            retriever: Name of the retriever that was retrained.
            state: How the retrain ended.
            outcome: Outcome as a sentence.
            details: Outcome as values that JSON can hold.
            run_id: Id of the Dagster run of the retrain.
        """
        values = _closing_values(state, outcome, run_id, details)
        is_retrain = table.c.kind == TaskKind.RETRAIN
        with self._database.write() as connection:
            closed = _update_open(connection, values, is_retrain, table.c.retriever == retriever)
            if not closed:
                _insert(connection, TaskKind.RETRAIN, retriever, None, values)
            _close_pilots(connection, retriever, "a retrain ended")

    def record_outcome(
        self,
        kind: TaskKind,
        retriever: str,
        state: TaskState,
        outcome: str,
        details: Mapping[str, Any],
    ) -> None:
        """Record work that a person started without a task, as a closed task.

        Args:
            kind: Kind of work.
            retriever: Name of the retriever.
            state: How the work ended.
            outcome: Outcome as a sentence.
            details: Outcome as values that JSON can hold.
        """
        values = _closing_values(state, outcome, details=details)
        with self._database.write() as connection:
            _insert(connection, kind, retriever, None, values)

    def open(self, retriever: str | None = None, *kinds: TaskKind) -> list[Task]:
        """Return the open tasks, oldest first.

        Args:
            retriever: Name of the retriever of the tasks. None returns tasks of all retrievers.
            *kinds: Kinds of the tasks. Without kinds, tasks of all kinds are returned.
        """
        conditions = [IS_OPEN]
        if retriever is not None:
            conditions.append(table.c.retriever == retriever)
        if kinds:
            conditions.append(table.c.kind.in_(kinds))
        with self._database.read() as connection:
            return _select(connection, *conditions)

    def find_by_run_key(self, run_key: str) -> Task | None:
        """Return the open task whose current attempt has this key of a Dagster run, or None."""
        for task in self.open():
            if task.run_key == run_key:
                return task
        return None

    def last(self, retriever: str, number: int, *kinds: TaskKind) -> list[Task]:
        """Return the tasks that were requested or closed last, newest first.

        Args:
            retriever: Name of the retriever of the tasks.
            number: Largest number of tasks to return.
            *kinds: Kinds of the tasks. Without kinds, tasks of all kinds are returned.
        """
        query = sa.select(table).where(table.c.retriever == retriever)
        if kinds:
            query = query.where(table.c.kind.in_(kinds))
        last_change = sa.func.coalesce(table.c.ended, table.c.asked)
        query = query.order_by(last_change.desc(), table.c.id.desc()).limit(number)
        with self._database.read() as connection:
            return [_task_from_row(row) for row in connection.execute(query)]


def _request(
    connection: sa.Connection,
    kind: TaskKind,
    retriever: str,
    event_range: EventRange,
    reason: str,
    requested_by: str,
) -> Task | None:
    """Return the open task for some events, or create it; see `TaskTable.request`.

    Returns None if a task for these events failed or was canceled. A person has to look at it, so
    it must not be requested again by itself.
    """
    is_same = [table.c.kind == kind, table.c.retriever == retriever, _has_range(event_range)]
    blocking_states = (TaskState.OPEN, TaskState.FAILED, TaskState.CANCELED)
    blocking_tasks = _select(connection, *is_same, table.c.state.in_(blocking_states))
    if blocking_tasks:
        newest = blocking_tasks[-1]
        return newest if newest.state == TaskState.OPEN else None

    if kind == TaskKind.RETRAIN:
        _close_pilots(connection, retriever, "a retrain was asked for")
    values = {"reason": reason, "asked_by": requested_by}
    _insert(connection, kind, retriever, event_range, values)
    newest = _select(connection, *is_same, IS_OPEN)[-1]
    return newest


def _has_range(events: EventRange) -> sa.ColumnElement[bool]:
    return (table.c.first_event == events.first) & (table.c.last_event == events.last)


def _insert(
    connection: sa.Connection,
    kind: TaskKind,
    retriever: str,
    event_range: EventRange | None,
    values: Mapping[str, Any],
) -> None:
    """Insert a task.

    Args:
        connection: Connection of a writing transaction.
        kind: Kind of work.
        retriever: Name of the retriever.
        event_range: Events that caused the task, or None.
        values: Values by column name. They replace the defaults: an open task that a person
            requests now.
    """
    row: dict[str, Any] = {
        "id": str(uuid4()),
        "kind": kind,
        "retriever": retriever,
        "state": TaskState.OPEN,
        "attempts": 1,
        "details": {},
        "reason": "a person asked",
        "asked_by": "person",
        "asked": time.time(),
    }
    if event_range is not None:
        row["first_event"] = event_range.first
        row["last_event"] = event_range.last
    row.update(values)
    connection.execute(sa.insert(table).values(row))


def _closing_values(
    state: TaskState,
    outcome: str,
    run_id: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the columns that change when a task is closed now, with their values."""
    return {
        "state": state,
        "ended": time.time(),
        "outcome": outcome,
        "run_id": run_id,
        "details": dict(details or {}),
    }


def _update_open(
    connection: sa.Connection, values: Mapping[str, Any], *conditions: sa.ColumnElement[bool]
) -> bool:
    """Set columns of the open tasks that meet the conditions; return whether there are any."""
    update = sa.update(table).where(IS_OPEN, *conditions).values(values)
    return connection.execute(update).rowcount > 0


def _close_pilots(connection: sa.Connection, retriever: str, outcome: str) -> None:
    """Close the open pilots of a retriever, because a retrain makes their answer unnecessary.

    A pilot is a short training that tells whether a retrain would help.
    """
    values = _closing_values(TaskState.DONE, outcome)
    is_pilot = table.c.kind == TaskKind.PILOT
    _update_open(connection, values, is_pilot, table.c.retriever == retriever)


def _select(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Task]:
    """Return the tasks that meet all conditions, oldest request first."""
    query = sa.select(table).where(*conditions).order_by(table.c.asked, table.c.id)
    return [_task_from_row(row) for row in connection.execute(query)]


def _task_from_row(row: sa.Row[Any]) -> Task:
    """Return a row of the table of tasks as a `Task`."""
    event_range = None
    if row.first_event is not None:
        event_range = EventRange(row.first_event, row.last_event)
    return Task(
        id=row.id,
        kind=TaskKind(row.kind),
        retriever=row.retriever,
        event_range=event_range,
        state=TaskState(row.state),
        attempts=row.attempts,
        reason=row.reason,
        requested_by=row.asked_by,
        requested=row.asked,
        run_id=row.run_id,
        ended=row.ended,
        outcome=row.outcome,
        details=row.details,
    )
