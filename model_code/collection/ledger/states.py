"""Events, and what became of them in one generation. That is stored nowhere: it follows from where
it stands.

A revert appends a block: compensations, then the event of the revert itself. So history only grows,
and what counts at a position, or leads from there to the end, is a list of a few intervals.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from model_code.collection.ledger.database import (
    IS_AGAIN,
    IS_REVERT,
    Database,
    chunks,
    events,
    log,
    rejections,
)
from model_code.collection.ledger.events import EventKind, EventState, LedgerCursor, Position
from model_code.files import hash_text
from model_code.text.documents import Document

REVERTS = sa.select(events.c.id, events.c.payload).where(IS_REVERT).order_by(events.c.id)
IS_CHANGE = events.c.kind != EventKind.REVERT
PLACE = (events.c.id, events.c.document_id)
HEAD = sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0))  # the last event, 0 without one
CHANGES = (
    sa.select(events)
    .where(events.c.id > sa.bindparam("start"), events.c.id <= sa.bindparam("end"), IS_CHANGE)
    .order_by(events.c.id)
)
MARKED = sa.select(
    events.c.received, events.c.document_id, events.c.content_hash, log.c.log
).select_from(sa.outerjoin(log, events, events.c.id == sa.bindparam("event")))
ROWS = 1000  # contents that are held in memory at a time
Interval = tuple[int, int]
"""The events after the first number, up to the second."""


@dataclass(frozen=True)
class Event:
    """A line of the log: a document was put (with its `payload`) or removed.

    received: seconds since 1970; again: the event that this one repeats, which waited while a
    revert came; state: what became of it in the generation that was asked about, None for what a
    revert appended and where nothing was asked.
    """

    id: int
    kind: str
    document_id: str
    content_hash: str
    payload: Mapping[str, Any] | None
    source: str
    received: float
    again: int | None = None
    state: EventState | None = None

    @property
    def document(self) -> Document | None:
        """The document as it arrived; None for a removal, and for what was erased."""
        put = self.kind == EventKind.PUT and self.payload is not None
        return Document.from_payload(self.document_id, self.payload) if put else None


@dataclass(frozen=True)
class Revert:
    """The block of the events `first` to `id` that took the log back to what counted at the event
    `to`.

    files: the contents that it restored are those of a generation's files, as no event says where
    that stood: nobody may pass the block over. retriever, generation: what was searched again;
    current: the generation in whose place.
    """

    id: int
    first: int
    to: int
    files: bool = False
    retriever: str = ""
    generation: int = 0
    current: int = 0


@dataclass(frozen=True)
class History:
    """All reverts of a log, oldest first."""

    reverts: Sequence[Revert]

    @property
    def blocks(self) -> list[Interval]:
        """The events that reverts appended to compensate others, and their own."""
        return [(revert.first - 1, revert.id) for revert in self.reverts]

    def effective(self, event: int) -> list[Interval]:
        """The events that count at a position, ascending: those that nobody took back by then.

        >>> History([Revert(id=6, first=5, to=2)]).effective(8)
        [(0, 2), (6, 8)]
        """
        return self._without_detours(0, event, over_files=True)

    def path(self, event: int, head: int, replay: bool = False) -> list[Interval]:
        """The events that lead from a position to that of `head`, ascending, without detours; with
        all if `replay`.

        A position that was taken back itself gets the compensations like any change.

        >>> history = History([Revert(id=6, first=5, to=2)])
        >>> history.path(1, 8), history.path(3, 8)
        ([(1, 2), (6, 8)], [(3, 8)])
        """
        return [(event, head)] if replay else self._without_detours(event, head, over_files=False)

    def _without_detours(self, start: int, top: int, over_files: bool) -> list[Interval]:
        """What leads from an event to another one, the blocks of reverts in place of what they took
        back.
        """
        blocks: list[Interval] = []
        for revert in reversed(self.reverts):
            if start < revert.id <= top and revert.to >= start and (over_files or not revert.files):
                blocks.append((revert.id, top))
                top = revert.to
        return [(first, last) for first, last in [(start, top), *reversed(blocks)] if first < last]

    def end_of_block(self, event: int) -> int:
        """The end of the block that an event lies in, where a position may be; the event itself
        outside of them all.

        >>> History([Revert(id=6, first=4, to=2)]).end_of_block(5)
        6
        """
        return next(
            (revert.id for revert in self.reverts if revert.first <= event <= revert.id), event
        )


def contains(intervals: Iterable[Interval], event: int) -> bool:
    """Whether an event is in one of the intervals."""
    return any(start < event <= end for start, end in intervals)


@dataclass(frozen=True)
class Pending:
    """The changes to apply next, oldest first, and the position that a generation has which holds
    them.
    """

    events: tuple[Event, ...]
    position: Position


@dataclass(frozen=True)
class Backlog:
    """How many changes wait, the ids of the first and the last, and when the oldest arrived; None
    without one.
    """

    number: int
    first: int | None
    last: int | None
    oldest: float | None

    @property
    def seconds(self) -> float | None:
        """The age of the oldest, None without one."""
        return None if self.oldest is None else max(0.0, time.time() - self.oldest)


@dataclass(frozen=True)
class LedgerView:
    """The log as a generation sees it that stands there. Every method is one transaction.

    An event that waited while a revert came was appended once more: both are one event here, which
    counts once.
    """

    _database: Database
    cursor: LedgerCursor

    def pending(self, limit: int | None = None) -> Pending:
        """What leads from the generation to the end of the log, or at least `limit` events of it.

        A position may not lie inside what a revert appended, and a replay is not cut.
        """
        with self._database.read() as connection:
            history, head = history_of(connection), connection.scalar(HEAD)
            path = history.path(self.cursor.position.event, head, self.cursor.replay)
            end = max(head, self.cursor.position.event)
            if limit is not None and not self.cursor.replay:
                ids = (
                    sa.select(events.c.id)
                    .where(in_intervals(path), IS_CHANGE)
                    .order_by(events.c.id)
                    .limit(limit)
                )
                first = connection.scalars(ids).all()
                end = history.end_of_block(first[-1]) if len(first) == limit else end
            parts = [{"start": start, "end": min(last, end)} for start, last in path]
            changes = tuple(
                Event(**row._mapping) for part in parts for row in connection.execute(CHANGES, part)
            )
            return Pending(
                changes, position_at(connection, end) if changes else self.cursor.position
            )

    def backlog(self) -> Backlog:
        """What waits, without its contents."""
        count, first, last = sa.func.count(), sa.func.min(events.c.id), sa.func.max(events.c.id)
        facts = sa.select(count, first, last, sa.func.min(events.c.received)).where(IS_CHANGE)
        cursor = self.cursor
        with self._database.read() as connection:
            path = history_of(connection).path(
                cursor.position.event, connection.scalar(HEAD), cursor.replay
            )
            return Backlog(*connection.execute(facts.where(in_intervals(path))).one())

    def counts(self) -> dict[EventState, int]:
        """How many events are in each state; each document has one live, deleted or absorbed event
        at most.
        """
        with self._database.read() as connection:
            here, once = _Here.read(connection, self.cursor), events.c.again.is_(None)
            repeated = events.c.id.in_(sa.select(events.c.again).where(IS_AGAIN))
            arrived, waiting = (
                once & sa.not_(in_intervals(here.blocks)),
                sa.not_(repeated) & in_intervals(here.path),
            )
            counts = dict.fromkeys(EventState, 0) | self._effective_counts(
                connection, here.effective
            )
            pending = _count(connection, events, arrived & waiting) + sum(
                map(here.is_pending, here.repeats.values())
            )
            rolled_back = _count(connection, events, arrived) - sum(counts.values()) - pending
            rejected = _count(connection, rejections, sa.true())
        states = {
            EventState.PENDING: pending,
            EventState.ROLLED_BACK: rolled_back,
            EventState.REJECTED: rejected,
        }
        return counts | states

    def events(self, first: int, last: int) -> list[Event]:
        """The events from the id `first` to `last`, oldest first, with what became of them."""
        return self._select(events.c.id.between(first, last))

    def life(self, document_id: str) -> list[Event]:
        """Every event of a document, oldest first, with what became of it."""
        return self._select(events.c.document_id == document_id)

    def arrivals(self, first: int, last: int) -> list[Event]:
        """The puts from the id `first` to `last` whose document is searched as it arrived then,
        oldest first.
        """
        changes = self.events(first, last)
        return [
            event
            for event in changes
            if event.kind == EventKind.PUT and event.state == EventState.LIVE
        ]

    def snapshot(self) -> Iterator[Document]:
        """The documents of the generation that came through the log, by id."""
        with self._database.read() as connection:
            last = _last(history_of(connection).effective(self.cursor.position.event))
            query = sa.select(events.c.document_id, events.c.payload).where(
                events.c.id.in_(sa.select(last.c.event)),
                events.c.kind == EventKind.PUT,
                events.c.payload.is_not(None),
            )
            rows = connection.execution_options(yield_per=ROWS).execute(
                query.order_by(events.c.document_id)
            )
            for some in rows.partitions():
                yield from (Document.from_payload(row.document_id, row.payload) for row in some)

    def _effective_counts(
        self, connection: sa.Connection, effective: Iterable[Interval]
    ) -> dict[EventState, int]:
        """How many of the events that count are in each state: of a document's all but the last are
        superseded.
        """
        last = _last(effective)
        trained = events.c.id <= self.cursor.trained
        query = sa.select(events.c.kind, trained, sa.func.count(), sa.func.sum(last.c.number))
        query = query.select_from(last.join(events, events.c.id == last.c.event)).group_by(
            events.c.kind, trained
        )
        counts: Counter[EventState] = Counter()
        for kind, absorbed, documents, number in connection.execute(query):
            counts += {
                state_of(kind, bool(absorbed)): documents,
                EventState.SUPERSEDED: int(number) - documents,
            }
        return counts

    def _select(self, condition: sa.ColumnElement[bool]) -> list[Event]:
        with self._database.read() as connection:
            return select_events(connection, self.cursor, condition)


def select_events(
    connection: sa.Connection, cursor: LedgerCursor, condition: sa.ColumnElement[bool]
) -> list[Event]:
    """Events, oldest first, with what became of them; a revert's own is left out."""
    query = sa.select(events).where(condition, IS_CHANGE).order_by(events.c.id)
    changes = [Event(**row._mapping) for row in connection.execute(query)]
    here = _Here.read(connection, cursor)
    named = {event.document_id for event in changes}
    last = {
        row.document_id: row.id
        for row in last_events(connection, named, *PLACE, within=here.effective)
    }
    return [
        replace(event, state=here.state(event, last.get(event.document_id))) for event in changes
    ]


@dataclass(frozen=True)
class _Here:
    """The intervals that count at a cursor, those that lead from there, and what reverts
    appended.

    repeats: for each event that was appended once more, itself and what repeats it.
    """

    cursor: LedgerCursor
    effective: list[Interval]
    path: list[Interval]
    blocks: list[Interval]
    repeats: Mapping[int, list[int]]

    @classmethod
    def read(cls, connection: sa.Connection, cursor: LedgerCursor) -> _Here:
        """Ask the log for all that follows from a cursor, once."""
        history, event = history_of(connection), cursor.position.event
        path = history.path(event, connection.scalar(HEAD), cursor.replay)
        return cls(cursor, history.effective(event), path, history.blocks, repeats_of(connection))

    def is_pending(self, same: Iterable[int]) -> bool:
        """Whether one event, which may be in the log several times, waits."""
        waits = any(
            contains(self.path, event) and not contains(self.blocks, event) for event in same
        )
        return waits and not any(contains(self.effective, event) for event in same)

    def state(self, event: Event, last: int | None) -> EventState | None:
        """What became of an event whose document's last one that counts is `last`."""
        same = self.repeats.get(event.again or event.id, [event.id])
        if counted := [each for each in same if contains(self.effective, each)]:
            trained = counted[0] <= self.cursor.trained
            return state_of(event.kind, trained) if last in counted else EventState.SUPERSEDED
        if contains(self.blocks, event.id):
            return None
        return EventState.PENDING if self.is_pending(same) else EventState.ROLLED_BACK


def state_of(kind: str, trained: bool) -> EventState:
    """The state of a document's last event that counts."""
    return (
        EventState.DELETED
        if kind == EventKind.REMOVE
        else EventState.ABSORBED
        if trained
        else EventState.LIVE
    )


def history_of(connection: sa.Connection) -> History:
    """All reverts of the log; what an upgrade appended names no retriever and is none, so that its
    events count.
    """
    rows = connection.execute(REVERTS)
    reverts = ((event, facts) for event, facts in rows if facts.get("retriever"))
    return History(
        [Revert(event, **facts | {"first": facts["first"] or event}) for event, facts in reverts]
    )


def repeats_of(connection: sa.Connection) -> dict[int, list[int]]:
    """For each event that a revert appended once more, itself and all that repeat it, ascending."""
    repeats: dict[int, list[int]] = {}
    query = sa.select(events.c.id, events.c.again).where(IS_AGAIN).order_by(events.c.id)
    for event, again in connection.execute(query):
        repeats.setdefault(again, [again]).append(event)
    return repeats


def mark(event: int, received: float, document_id: str, content_hash: str) -> str:
    """Eight hexadecimal digits that tell an event from those that other logs have under its number.

    >>> mark(1, 0.1, "a", "b")
    'c85b8cf8'
    """
    return hash_text(f"{event} {received!r} {document_id} {content_hash}")[:8]


def position_at(connection: sa.Connection, event: int) -> Position:
    """The position of an event, without a mark if the log has none of this number."""
    received, document_id, content_hash, log_id = connection.execute(MARKED, {"event": event}).one()
    return Position(
        log_id, event, "" if received is None else mark(event, received, document_id, content_hash)
    )


def in_intervals(intervals: Iterable[Interval]) -> sa.ColumnElement[bool]:
    """The condition that an event lies in one of the intervals."""
    return sa.or_(
        sa.false(), *((events.c.id > start) & (events.c.id <= end) for start, end in intervals)
    )


def last_events(
    connection: sa.Connection,
    document_ids: Iterable[str],
    *columns: sa.Column[Any],
    within: Iterable[Interval] | None = None,
) -> list[sa.Row[Any]]:
    """The last event of each document, of some intervals or of all; columns: all by default."""
    among = sa.true() if within is None else in_intervals(within)
    rows: list[sa.Row[Any]] = []
    for ids in chunks(sorted(document_ids)):
        last = sa.select(sa.func.max(events.c.id)).where(events.c.document_id.in_(ids), among)
        query = sa.select(*(columns or events.c)).where(
            events.c.id.in_(last.group_by(events.c.document_id))
        )
        rows += connection.execute(query)
    return rows


def _last(intervals: Iterable[Interval]) -> sa.Subquery:
    """By document: the last event of some intervals, and their number."""
    last = (sa.func.max(events.c.id).label("event"), sa.func.count().label("number"))
    return (
        sa.select(*last)
        .where(in_intervals(intervals), IS_CHANGE)
        .group_by(events.c.document_id)
        .subquery()
    )


def _count(connection: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table).where(condition)) or 0
