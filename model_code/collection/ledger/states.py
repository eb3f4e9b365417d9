"""The state of each event as seen from one generation.

States are not stored. They follow from the position of the generation in the ledger.

A revert appends a block of events: compensations, and at the end the event of the revert itself. So
the ledger only grows. The events that count at a position, and the events that lead from there to
the end of the ledger, form a short list of intervals.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from model_code.collection.ledger.database import (
    IS_REPEATED,
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

# Number of documents that `LedgerView.snapshot` holds in memory at a time.
SNAPSHOT_BATCH_ROWS = 1000

IS_CHANGE = events.c.kind.in_([EventKind.PUT, EventKind.REMOVE])
IS_APPLIED = events.c.kind != EventKind.REVERT
SELECT_REVERTS = sa.select(events.c.id, events.c.payload).where(IS_REVERT).order_by(events.c.id)
# The id of the last event, or 0 if there is none.
SELECT_LAST_ID = sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0))
SELECT_APPLIED = (
    sa.select(events)
    .where(events.c.id > sa.bindparam("start"), events.c.id <= sa.bindparam("end"), IS_APPLIED)
    .order_by(events.c.id)
)
SELECT_MARKED_EVENT = sa.select(
    events.c.received, events.c.document_id, events.c.content_hash, log.c.log
).select_from(sa.outerjoin(log, events, events.c.id == sa.bindparam("event")))

Interval = tuple[int, int]
"""The events after the first number, up to and including the second."""


@dataclass(frozen=True)
class Event:
    """A document that was put or removed, or whose vector was solved again.

    Attributes:
        id: Id of the event, which only rises.
        kind: "put", "remove" or "solve".
        document_id: Id of the document.
        content_hash: Content hash of the document that was put, or "".
        payload: Content of the document that was put, or the hashes of the queries that a vector is
            solved for. None for a removal and after an erasure.
        source: Where the document came from.
        received: Time in seconds since 1970.
        again: Id of the event that this one repeats, because it was pending when a revert came.
        state: State in the generation that was asked about. None for the events that a revert
            appended, and where no generation was asked about.
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
        """The document that was put; None for a removal and for an erased document."""
        if self.kind != EventKind.PUT or self.payload is None:
            return None
        return Document.from_payload(self.document_id, self.payload)

    @property
    def solved_queries(self) -> frozenset[str]:
        """Hashes of the queries that the document's vector is solved for again."""
        if self.kind != EventKind.SOLVE or self.payload is None:
            return frozenset()
        return frozenset(self.payload["queries"])


@dataclass(frozen=True)
class Revert:
    """A revert: the block of events `first` to `id`, which restored what counted at event `to`.

    Attributes:
        id: Id of the event that ends the block.
        first: Id of the first event of the block.
        to: Event up to which events count again.
        files: True if the contents were restored from a generation's files, since no event tells
            which position they had. Such a block must never be skipped.
        retriever: Retriever whose generation was restored.
        generation: Number of the restored generation.
        current: Number of the generation that was current before.
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
    """All reverts of a ledger, oldest first."""

    reverts: Sequence[Revert]

    @property
    def blocks(self) -> list[Interval]:
        """The intervals of events that reverts appended, their own event included."""
        return [(revert.first - 1, revert.id) for revert in self.reverts]

    def effective(self, event: int) -> list[Interval]:
        """Return the intervals of events that count at a position, ascending.

        Events that were reverted by then do not count.

        >>> History([Revert(id=6, first=5, to=2)]).effective(8)
        [(0, 2), (6, 8)]
        """
        return self._without_reverted(0, event, skip_restored_files=True)

    def path(self, event: int, head: int, replay: bool = False) -> list[Interval]:
        """Return the intervals of events that lead from one position to another, ascending.

        Reverted events on the way are left out, together with their compensations. If the start
        itself was reverted, its compensations are applied like any change.

        >>> history = History([Revert(id=6, first=5, to=2)])
        >>> history.path(1, 8), history.path(3, 8)
        ([(1, 2), (6, 8)], [(3, 8)])

        Args:
            event: Event to start after.
            head: Last event to include.
            replay: Return all events between the two, reverted ones as well.
        """
        if replay:
            return [(event, head)]
        return self._without_reverted(event, head, skip_restored_files=False)

    def _without_reverted(self, start: int, end: int, skip_restored_files: bool) -> list[Interval]:
        """Return the interval from `start` to `end` without the events that a revert took back."""
        intervals: list[Interval] = []
        for revert in reversed(self.reverts):
            is_between = start < revert.id <= end and revert.to >= start
            if is_between and (skip_restored_files or not revert.files):
                intervals.append((revert.id, end))
                end = revert.to
        intervals.append((start, end))
        intervals.reverse()
        return [(first, last) for first, last in intervals if first < last]

    def end_of_block(self, event: int) -> int:
        """Return the end of the revert block that an event lies in, or the event itself.

        A position may lie at the end of a block, but not inside.

        >>> History([Revert(id=6, first=4, to=2)]).end_of_block(5)
        6
        """
        for revert in self.reverts:
            if revert.first <= event <= revert.id:
                return revert.id
        return event


def contains(intervals: Iterable[Interval], event: int) -> bool:
    """Return whether an event lies in one of the intervals."""
    return any(start < event <= end for start, end in intervals)


@dataclass(frozen=True)
class Pending:
    """The events to apply next, oldest first, and the position after they are applied."""

    events: tuple[Event, ...]
    position: Position

    @property
    def changes(self) -> list[Event]:
        """The events that put or remove documents."""
        return [event for event in self.events if event.kind != EventKind.SOLVE]


@dataclass(frozen=True)
class Backlog:
    """The recorded events that are not searchable yet.

    Attributes:
        number: Number of events.
        first: Id of the first one; None if there is none.
        last: Id of the last one; None if there is none.
        oldest: Time when the oldest arrived, in seconds since 1970; None if there is none.
    """

    number: int
    first: int | None
    last: int | None
    oldest: float | None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest event in seconds; None if there is none."""
        if self.oldest is None:
            return None
        return max(0.0, time.time() - self.oldest)


@dataclass(frozen=True)
class LedgerView:
    """The ledger as seen from a generation with this cursor. Every method is one transaction.

    An event that was pending when a revert came is in the ledger twice. Both entries are one event
    here, which counts once.
    """

    _database: Database
    cursor: LedgerCursor

    def pending(self, limit: int | None = None) -> Pending:
        """Return the events that lead from the generation to the end of the ledger.

        Args:
            limit: Return at least this many changes if there are as many, and not many more, with
                the vectors that are solved again before the next change. A position may not lie
                inside a revert's block, so the block is finished. A replay is never cut. None
                returns all events.
        """
        start = self.cursor.position.event
        with self._database.read() as connection:
            history = history_of(connection)
            head = connection.scalar(SELECT_LAST_ID)
            path = history.path(start, head, self.cursor.replay)
            end = max(head, start)
            if limit is not None and not self.cursor.replay:
                query = sa.select(events.c.id).where(in_intervals(path), IS_CHANGE)
                ids = connection.scalars(query.order_by(events.c.id).limit(limit + 1)).all()
                if len(ids) > limit:
                    last = _last_solve_between(connection, path, ids[limit - 1], ids[limit])
                    end = history.end_of_block(last or ids[limit - 1])

            applied: list[Event] = []
            for first, last in path:
                rows = connection.execute(SELECT_APPLIED, {"start": first, "end": min(last, end)})
                applied.extend(Event(**row._mapping) for row in rows)
            if not applied:
                return Pending((), self.cursor.position)
            return Pending(tuple(applied), position_at(connection, end))

    def backlog(self) -> Backlog:
        """Return the size and age of the pending events, without reading their contents."""
        query = sa.select(
            sa.func.count(),
            sa.func.min(events.c.id),
            sa.func.max(events.c.id),
            sa.func.min(events.c.received),
        ).where(IS_CHANGE)
        start = self.cursor.position.event
        with self._database.read() as connection:
            head = connection.scalar(SELECT_LAST_ID)
            path = history_of(connection).path(start, head, self.cursor.replay)
            return Backlog(*connection.execute(query.where(in_intervals(path))).one())

    def count_pending_with_queries(self) -> int:
        """Return how many pending events put documents that bring queries.

        The database counts them; no content is read.
        """
        has_queries = sa.func.json_array_length(events.c.payload["queries"]) > 0
        query = sa.select(sa.func.count()).where(IS_CHANGE, has_queries)
        start = self.cursor.position.event
        with self._database.read() as connection:
            head = connection.scalar(SELECT_LAST_ID)
            path = history_of(connection).path(start, head, self.cursor.replay)
            return connection.execute(query.where(in_intervals(path))).scalar_one()

    def counts(self) -> dict[EventState, int]:
        """Return the number of events in each state.

        Each document has at most one event that is live, deleted or absorbed.
        """
        with self._database.read() as connection:
            intervals = _Intervals.read(connection, self.cursor)
            is_first_entry = events.c.again.is_(None)
            arrived = IS_CHANGE & is_first_entry & sa.not_(in_intervals(intervals.blocks))
            repeated_ids = sa.select(events.c.again).where(IS_REPEATED)
            is_unrepeated = sa.not_(events.c.id.in_(repeated_ids))

            pending = _count(
                connection, events, arrived & is_unrepeated & in_intervals(intervals.path)
            )
            for entries in intervals.repeats.values():
                if intervals.is_pending(entries):
                    pending += 1

            counts = dict.fromkeys(EventState, 0)
            counts.update(self._effective_counts(connection, intervals.effective))
            effective = sum(counts.values())
            counts[EventState.PENDING] = pending
            counts[EventState.ROLLED_BACK] = (
                _count(connection, events, arrived) - effective - pending
            )
            counts[EventState.REJECTED] = _count(connection, rejections, sa.true())
        return counts

    def events(self, first: int, last: int) -> list[Event]:
        """Return the events with ids from `first` to `last`, oldest first, with their states."""
        return self._select(events.c.id.between(first, last))

    def life(self, document_id: str) -> list[Event]:
        """Return all events of a document, oldest first, with their states."""
        return self._select(events.c.document_id == document_id)

    def arrivals(self, first: int, last: int) -> list[Event]:
        """Return the puts from `first` to `last` whose content is searched now, oldest first."""
        arrivals: list[Event] = []
        for event in self.events(first, last):
            if event.kind == EventKind.PUT and event.state == EventState.LIVE:
                arrivals.append(event)
        return arrivals

    def snapshot(self) -> Iterator[Document]:
        """Yield the generation's documents that came through the ledger, by ascending id."""
        with self._database.read() as connection:
            effective = history_of(connection).effective(self.cursor.position.event)
            last = _last_by_document(effective)
            query = (
                sa.select(events.c.document_id, events.c.payload)
                .where(
                    events.c.id.in_(sa.select(last.c.event)),
                    events.c.kind == EventKind.PUT,
                    events.c.payload.is_not(None),
                )
                .order_by(events.c.document_id)
            )
            streaming = connection.execution_options(yield_per=SNAPSHOT_BATCH_ROWS)
            for batch in streaming.execute(query).partitions():
                for row in batch:
                    yield Document.from_payload(row.document_id, row.payload)

    def _effective_counts(
        self, connection: sa.Connection, effective: Iterable[Interval]
    ) -> Counter[EventState]:
        """Count the events that count by state: only the last one of a document is not superseded.

        States without events may be missing.
        """
        last = _last_by_document(effective)
        is_trained = events.c.id <= self.cursor.trained
        query = (
            sa.select(events.c.kind, is_trained, sa.func.count(), sa.func.sum(last.c.number))
            .select_from(last.join(events, events.c.id == last.c.event))
            .group_by(events.c.kind, is_trained)
        )
        counts: Counter[EventState] = Counter()
        for kind, trained, documents, number in connection.execute(query):
            counts[state_of(kind, bool(trained))] += documents
            counts[EventState.SUPERSEDED] += int(number) - documents
        return counts

    def _select(self, condition: sa.ColumnElement[bool]) -> list[Event]:
        with self._database.read() as connection:
            return select_events(connection, self.cursor, condition)


def select_events(
    connection: sa.Connection, cursor: LedgerCursor, condition: sa.ColumnElement[bool]
) -> list[Event]:
    """Return the events that meet a condition, oldest first, with their states.

    The event of a revert itself is left out.

    Args:
        connection: Connection of a transaction.
        cursor: Cursor of the generation from which states are seen.
        condition: Condition on the columns of `events`.
    """
    query = sa.select(events).where(condition, IS_CHANGE).order_by(events.c.id)
    changes = [Event(**row._mapping) for row in connection.execute(query)]
    intervals = _Intervals.read(connection, cursor)

    document_ids = {event.document_id for event in changes}
    rows = last_events(
        connection,
        document_ids,
        events.c.id,
        events.c.document_id,
        within=intervals.effective,
    )
    last_ids = {row.document_id: row.id for row in rows}
    with_states: list[Event] = []
    for event in changes:
        state = intervals.state(event, last_ids.get(event.document_id))
        with_states.append(replace(event, state=state))
    return with_states


@dataclass(frozen=True)
class _Intervals:
    """The intervals of a ledger as seen from a cursor.

    Attributes:
        cursor: Cursor of the generation.
        effective: Events that count at the cursor.
        path: Events that lead from the cursor to the end.
        blocks: Events that reverts appended.
        repeats: For each event that was appended again, the ids of all its entries.
    """

    cursor: LedgerCursor
    effective: list[Interval]
    path: list[Interval]
    blocks: list[Interval]
    repeats: Mapping[int, list[int]]

    @classmethod
    def read(cls, connection: sa.Connection, cursor: LedgerCursor) -> _Intervals:
        history = history_of(connection)
        start = cursor.position.event
        return cls(
            cursor,
            effective=history.effective(start),
            path=history.path(start, connection.scalar(SELECT_LAST_ID), cursor.replay),
            blocks=history.blocks,
            repeats=repeats_of(connection),
        )

    def is_pending(self, entries: Iterable[int]) -> bool:
        """Return whether the event with these entries is pending."""
        is_on_path = False
        for event in entries:
            if contains(self.effective, event):
                return False
            if contains(self.path, event) and not contains(self.blocks, event):
                is_on_path = True
        return is_on_path

    def state(self, event: Event, last: int | None) -> EventState | None:
        """Return the state of an event.

        Args:
            event: Event whose state is asked for.
            last: Id of the last event of the same document that counts.
        """
        entries = self.repeats.get(event.again or event.id, [event.id])
        counting = [entry for entry in entries if contains(self.effective, entry)]
        if counting:
            if last not in counting:
                return EventState.SUPERSEDED
            return state_of(event.kind, trained=counting[0] <= self.cursor.trained)
        if contains(self.blocks, event.id):
            return None
        if self.is_pending(entries):
            return EventState.PENDING
        return EventState.ROLLED_BACK


def state_of(kind: str, trained: bool) -> EventState:
    """Return the state of a document's last event that counts."""
    if kind == EventKind.REMOVE:
        return EventState.DELETED
    if trained:
        return EventState.ABSORBED
    return EventState.LIVE


def history_of(connection: sa.Connection) -> History:
    """Read all reverts of the ledger."""
    reverts: list[Revert] = []
    for event, payload in connection.execute(SELECT_REVERTS):
        # A revert without compensations consists of its own event only.
        first = payload["first"] or event
        reverts.append(Revert(event, **{**payload, "first": first}))
    return History(reverts)


def repeats_of(connection: sa.Connection) -> dict[int, list[int]]:
    """Return, for each event that was appended again, the ids of all its entries, ascending."""
    repeats: dict[int, list[int]] = {}
    query = sa.select(events.c.id, events.c.again).where(IS_REPEATED).order_by(events.c.id)
    for event, original in connection.execute(query):
        repeats.setdefault(original, [original]).append(event)
    return repeats


def mark(event: int, received: float, document_id: str, content_hash: str) -> str:
    """Return eight hexadecimal digits that identify an event among copies of a ledger.

    >>> mark(1, 0.1, "a", "b")
    'c85b8cf8'
    """
    return hash_text(f"{event} {received!r} {document_id} {content_hash}")[:8]


def position_at(connection: sa.Connection, event: int) -> Position:
    """Return the position of an event; it has no mark if the ledger has no such event."""
    row = connection.execute(SELECT_MARKED_EVENT, {"event": event}).one()
    received, document_id, content_hash, log_id = row
    event_mark = ""
    if received is not None:
        event_mark = mark(event, received, document_id, content_hash)
    return Position(log_id, event, event_mark)


def in_intervals(intervals: Iterable[Interval]) -> sa.ColumnElement[bool]:
    """Return the condition that an event lies in one of the intervals."""
    conditions = [(events.c.id > start) & (events.c.id <= end) for start, end in intervals]
    return sa.or_(sa.false(), *conditions)


def last_events(
    connection: sa.Connection,
    document_ids: Iterable[str],
    *columns: sa.Column[Any],
    within: Iterable[Interval] | None = None,
) -> list[sa.Row[Any]]:
    """Return the last put or removal of each document.

    Args:
        connection: Connection of a transaction.
        document_ids: Documents to look up.
        *columns: Columns to return; all by default.
        within: Intervals in which events are looked for; None means the whole ledger.
    """
    is_within = sa.true() if within is None else in_intervals(within)
    rows: list[sa.Row[Any]] = []
    for ids in chunks(sorted(document_ids)):
        last_ids = (
            sa.select(sa.func.max(events.c.id))
            .where(events.c.document_id.in_(ids), is_within, IS_CHANGE)
            .group_by(events.c.document_id)
        )
        query = sa.select(*(columns or events.c)).where(events.c.id.in_(last_ids))
        rows.extend(connection.execute(query))
    return rows


def _last_solve_between(
    connection: sa.Connection, intervals: Iterable[Interval], after: int, before: int
) -> int | None:
    """Return the last event between two others that solves a vector again, or None."""
    is_solve = events.c.kind == EventKind.SOLVE
    is_between = (events.c.id > after) & (events.c.id < before)
    query = sa.select(sa.func.max(events.c.id)).where(in_intervals(intervals), is_solve, is_between)
    return connection.scalar(query)


def _last_by_document(intervals: Iterable[Interval]) -> sa.Subquery:
    """Select, for each document, its last `event` in some intervals and the `number` of events."""
    last_event = sa.func.max(events.c.id).label("event")
    number = sa.func.count().label("number")
    return (
        sa.select(last_event, number)
        .where(in_intervals(intervals), IS_CHANGE)
        .group_by(events.c.document_id)
        .subquery()
    )


def _count(connection: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(condition)
    return connection.scalar(query) or 0
