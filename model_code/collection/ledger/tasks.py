"""Work: what a project has to do next (an addition, a look at drift, a pilot, a retrain), and what
came of it.

Work is asked for once: while it is open, asking for the same returns it. One that fails is tried
again, at most `ATTEMPTS` times; then a person must look. Its id is random, as Dagster never forgets
a run's key and another log would give the same numbers again.
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

from model_code.collection.ledger.database import Database, Number, metadata

ATTEMPTS = 3  # at the same work; after so many failures a person must look


class WorkKind(StrEnum):
    """What is to be done: apply what waits, look at its drift, train on a sample of what is live,
    or on all of it.
    """

    ADD = "add"
    DRIFT = "drift"
    PILOT = "pilot"
    RETRAIN = "retrain"


class WorkState(StrEnum):
    """`OPEN` while it is due or runs. `REFUSED`: done, and it led to nothing, as gate, pilot or
    look says.
    """

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, order=True)
class EventRange:
    """The events of the log from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True)
class Work:
    """Something to do for a retriever, and why.

    about: the events that it is about; None where a person asked. attempts: including the one that
    is due. asked_by: "sensor", "drift", "person", or the id of the pilot that asked. asked, ended:
    seconds since 1970. outcome: what came of it, in words; details: the same as plain values.
    """

    id: str
    kind: WorkKind
    retriever: str
    about: EventRange | None
    state: WorkState
    attempts: int
    reason: str
    asked_by: str
    asked: float
    run_id: str | None = None
    ended: float | None = None
    outcome: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The work as plain values."""
        about = [self.about.first, self.about.last] if self.about else None
        return {**vars(self), "about": about, "details": dict(self.details)}

    @property
    def run_key(self) -> str:
        """The key of the Dagster run of this attempt, which also names its partition and the folder
        that it works in.

        It is compared, never parsed. Kind and moment are for people; what is random makes it unlike
        any other.
        """
        moment = datetime.fromtimestamp(self.asked, UTC)
        return f"{self.kind}-{moment:%Y-%m-%d-%H%M}-{self.id[-8:]}-{self.attempts}"


table = sa.Table(
    "work",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("retriever", sa.String, nullable=False),
    sa.Column("first_event", Number),
    sa.Column("last_event", Number),
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
# later versions may keep other kinds here, which are theirs
IS_KNOWN = table.c.kind.in_(list(WorkKind))
# literally, as a partial index is only used for this text
IS_OPEN = table.c.state == sa.literal_column("'open'")
sa.Index(
    "work_open",
    *(table.c[name] for name in ("kind", "first_event", "last_event", "retriever")),
    unique=True,
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)


@dataclass(frozen=True)
class WorkTable:
    """The work of one project. Every method is one transaction; of two that ask at once one finds
    what the other asked.

    `ledger.work` is that of a log.
    """

    _database: Database

    # Asking

    def ask(
        self, kind: WorkKind, retriever: str, about: EventRange, reason: str, asked_by: str
    ) -> Work | None:
        """The open work about these events: that which is there, or a new one. None if it failed or
        was canceled.

        A retrain takes the place of the pilots that are open, which would only tell whether one is
        due.
        """
        with self._database.write() as connection:
            return _ask(connection, kind, retriever, about, reason, asked_by)

    def keep_only(self, kind: WorkKind, retriever: str, about: EventRange | None) -> None:
        """End what is open of a kind and about other events: it was done, or is part of what is
        asked for now.
        """
        others = sa.true() if about is None else sa.not_(_about(about))
        with self._database.write() as connection:
            ended = _ended(WorkState.DONE, "nothing of it waits any more")
            _end(connection, ended, table.c.kind == kind, table.c.retriever == retriever, others)

    # Ending

    def fail(self, work: Work, outcome: str, run_id: str | None = None) -> None:
        """Note that an attempt failed; the work is due again, unless it was the last attempt."""
        again = {"attempts": work.attempts + 1, "outcome": outcome, "run_id": run_id}
        failed = _ended(WorkState.FAILED, outcome, run_id)
        with self._database.write() as connection:
            _end(connection, failed if work.attempts >= ATTEMPTS else again, table.c.id == work.id)

    def end(
        self,
        work: Work,
        state: WorkState,
        outcome: str,
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        retrain: bool = False,
    ) -> None:
        """Note what came of one; one that is not open any more stays as it is.

        retrain: ask for a retrain about the same events, in the same transaction, so that a kill
        loses neither; not where the work was settled meanwhile.
        """
        with self._database.write() as connection:
            ended = _end(connection, _ended(state, outcome, run_id, details), table.c.id == work.id)
            if ended and retrain and work.about:
                _ask(
                    connection,
                    WorkKind.RETRAIN,
                    work.retriever,
                    work.about,
                    outcome,
                    asked_by=work.id,
                )

    def conclude_retrains(
        self,
        retriever: str,
        state: WorkState,
        outcome: str,
        details: Mapping[str, Any],
        run_id: str | None = None,
    ) -> None:
        """Note what came of a retrain: of all that are open, whoever began it; one that nobody
        asked for is noted too.

        Open pilots end with it: what it leaves in doubt, a later report asks for again.
        """
        ended = _ended(state, outcome, run_id, details)
        with self._database.write() as connection:
            if not _end(
                connection, ended, table.c.kind == WorkKind.RETRAIN, table.c.retriever == retriever
            ):
                _insert(connection, WorkKind.RETRAIN, retriever, None, **ended)
            _settle_pilots(connection, retriever, "a retrain ended")

    def note(
        self,
        kind: WorkKind,
        retriever: str,
        state: WorkState,
        outcome: str,
        details: Mapping[str, Any],
    ) -> None:
        """Note what came of work that a person did and that answers nothing that was asked."""
        with self._database.write() as connection:
            _insert(connection, kind, retriever, None, **_ended(state, outcome, details=details))

    # Questions

    def open(self, retriever: str | None = None, *kinds: WorkKind) -> list[Work]:
        """The open work, oldest first, of a retriever, or of all; of some kinds, or of any."""
        conditions = [IS_OPEN] + ([] if retriever is None else [table.c.retriever == retriever])
        with self._database.read() as connection:
            return _select(connection, *conditions, *([table.c.kind.in_(kinds)] if kinds else []))

    def of_run(self, run_key: str) -> Work | None:
        """The open work whose present attempt has this key."""
        return next((work for work in self.open() if work.run_key == run_key), None)

    def last(self, retriever: str, number: int, *kinds: WorkKind) -> list[Work]:
        """The work that was asked for or ended last, newest first."""
        conditions = [IS_KNOWN, table.c.retriever == retriever] + (
            [table.c.kind.in_(kinds)] if kinds else []
        )
        newest = sa.func.coalesce(table.c.ended, table.c.asked).desc(), table.c.id.desc()
        query = sa.select(table).where(*conditions).order_by(*newest).limit(number)
        with self._database.read() as connection:
            return [_work(row) for row in connection.execute(query)]


def _ask(
    connection: sa.Connection,
    kind: WorkKind,
    retriever: str,
    about: EventRange,
    reason: str,
    asked_by: str,
) -> Work | None:
    subject = table.c.kind == kind, table.c.retriever == retriever, _about(about)
    same = _select(
        connection,
        *subject,
        table.c.state.in_((WorkState.OPEN, WorkState.FAILED, WorkState.CANCELED)),
    )
    if same:
        return same[-1] if same[-1].state == WorkState.OPEN else None
    if kind == WorkKind.RETRAIN:
        _settle_pilots(connection, retriever, "a retrain was asked for")
    _insert(connection, kind, retriever, about, reason=reason, asked_by=asked_by)
    return _select(connection, *subject, IS_OPEN)[-1]


def _about(events: EventRange) -> sa.ColumnElement[bool]:
    return (table.c.first_event == events.first) & (table.c.last_event == events.last)


def _insert(
    connection: sa.Connection,
    kind: WorkKind,
    retriever: str,
    about: EventRange | None,
    **values: Any,
) -> None:
    """Add a row; it is open, asked for now and by a person unless `values` say otherwise."""
    events = {"first_event": about.first, "last_event": about.last} if about else {}
    person = {"reason": "a person asked", "asked_by": "person", "asked": time.time()}
    row = {"state": WorkState.OPEN, "attempts": 1, "details": {}, **person, **events, **values}
    connection.execute(
        sa.insert(table).values(id=str(uuid4()), kind=kind, retriever=retriever, **row)
    )


def _ended(
    state: WorkState,
    outcome: str,
    run_id: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "state": state,
        "ended": time.time(),
        "outcome": outcome,
        "run_id": run_id,
        "details": dict(details or {}),
    }


def _end(
    connection: sa.Connection, values: Mapping[str, Any], *which: sa.ColumnElement[bool]
) -> bool:
    """Note what came of open work; whether there was such."""
    return connection.execute(sa.update(table).where(IS_OPEN, *which).values(values)).rowcount > 0


def _settle_pilots(connection: sa.Connection, retriever: str, outcome: str) -> None:
    pilots = table.c.kind == WorkKind.PILOT, table.c.retriever == retriever
    _end(connection, _ended(WorkState.DONE, outcome), *pilots)


def _select(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Work]:
    query = sa.select(table).where(IS_KNOWN, *conditions).order_by(table.c.asked, table.c.id)
    return [_work(row) for row in connection.execute(query)]


def _work(row: sa.Row[Any]) -> Work:
    values = dict(row._mapping)
    first, last = values.pop("first_event"), values.pop("last_event")
    about = None if first is None else EventRange(first, last)
    return Work(
        **values | {"about": about, "kind": WorkKind(row.kind), "state": WorkState(row.state)}
    )
