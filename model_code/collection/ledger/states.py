"""Compute the state of each event as seen from one generation, such as pending or live.

A generation is a snapshot of the index. It contains the ledger's events up to the event that is
called its position. States are not stored, because they follow from this position.

Reverts make this more difficult. A revert takes all documents back to their state at an earlier
position. It deletes no events. Instead, it appends a block of events: first compensations, which
undo changes, and at the end the event of the revert itself. After the block, it appends copies of
the events that were pending, because the revert must not undo them.

Two sets of events follow from the reverts. Each is held as a short list of id intervals:

- The effective events of a position: the events up to the position that were not reverted.
- The path from a position to the end of the ledger: the events to apply next.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from model_code.collection.ledger.database import (
    IS_COPY,
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

# Number of documents that `LedgerView.snapshot` reads at a time. It bounds the memory.
SNAPSHOT_BATCH_ROWS = 1000

# SQL conditions and queries that several functions use.
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
"""A pair (start, end): the events with ids above `start`, up to and including `end`."""


@dataclass(frozen=True)
class Event:
    """An event about a document: it is put or removed, or its vector must be solved again.

    Attributes:
        id: Id of the event. Later events have larger ids.
        kind: "put", "remove" or "solve".
        document_id: Id of the document.
        content_hash: Content hash of the document that was put. "" for other kinds.
        payload: Content of the document that was put. For "solve", the hashes of the queries to
            solve the vector for, and the name of the retriever. None for a removal, and after the
            document was erased.
        source: Origin of the event, such as "api" or the name of a file.
        received: Time in seconds since 1970.
        again: Id of the original if this event is a copy, else None. A revert appends copies of the
            pending events.
        state: State as seen from a generation. None for compensations of a revert, and if the event
            was read without a generation.
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
        """The document that was put. None for other kinds, and if the document was erased."""
        if self.kind != EventKind.PUT or self.payload is None:
            return None
        return Document.from_payload(self.document_id, self.payload)

    def solves_for(self, retriever: str) -> bool:
        """Return whether the event asks a retriever to solve the document's vector again.

        An event without a name of a retriever asks all of them.
        """
        if self.kind != EventKind.SOLVE:
            return False
        return self.payload is None or self.payload.get("retriever", retriever) == retriever

    @property
    def solved_queries(self) -> frozenset[str]:
        """Hashes of the queries to solve the document's vector for. Empty for other kinds."""
        if self.kind != EventKind.SOLVE or self.payload is None:
            return frozenset()
        return frozenset(self.payload["queries"])


@dataclass(frozen=True)
class Revert:
    """A revert of all documents to their state after event `to`.

    In the ledger it is the block of events from `first` to `id`.

    Attributes:
        id: Id of the event that ends the block.
        first: Id of the first event of the block.
        to: Id of the last event before the changes that were undone.
        files: True if it is unknown which events the restored generation contains. Then `to` is 0,
            and the documents were restored from the files of the generation. A path through such a
            revert must include its block, because no events before it lead to these documents.
        retriever: Name of the retriever whose generation was restored.
        generation: Number of the restored generation.
        current: Number of the generation that was current before the revert.
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
    """The reverts of a ledger, from which effective events and paths follow.

    Attributes:
        reverts: All reverts, oldest first.
    """

    reverts: Sequence[Revert]

    @property
    def blocks(self) -> list[Interval]:
        """The blocks of all reverts, as intervals of event ids."""
        return [(revert.first - 1, revert.id) for revert in self.reverts]

    def effective(self, event: int) -> list[Interval]:
        """Return the effective events of a position as ascending intervals.

        These are the events up to `event` that no revert up to `event` undid. The block of a revert
        is left out together with the events that it undid, because they cancel each other.

        Event 6 reverts to event 2, so it undid events 3 and 4. Its block has events 5 and 6:

        >>> History([Revert(id=6, first=5, to=2)]).effective(8)
        [(0, 2), (6, 8)]

        Args:
            event: Id of the event at the position.
        """
        return self._without_reverted(0, event, skip_restored_files=True)

    def path(self, event: int, head: int, replay: bool = False) -> list[Interval]:
        """Return the events that lead from one position to another, as ascending intervals.

        Events between the positions that a revert undid are left out, together with the block of
        the revert. The block is only needed if the revert also undid events that were applied
        before the start. It is then included.

        Event 6 reverts to event 2. From event 1, the events 3 to 6 can be left out. From event 3,
        the block is needed to undo event 3:

        >>> history = History([Revert(id=6, first=5, to=2)])
        >>> history.path(1, 8), history.path(3, 8)
        ([(1, 2), (6, 8)], [(3, 8)])

        Args:
            event: Id of the event to start after.
            head: Id of the last event to include.
            replay: Include all events between the two, reverted events as well.
        """
        if replay:
            return [(event, head)]
        return self._without_reverted(event, head, skip_restored_files=False)

    def _without_reverted(self, start: int, end: int, skip_restored_files: bool) -> list[Interval]:
        """Return the interval from `start` to `end` without events that a revert undid.

        If the event with the id r reverts to event t, the events after t up to r are left out.
        These are the undone events and the block of the revert, which cancel each other.

        Args:
            start: Id of the event to start after.
            end: Id of the last event to include.
            skip_restored_files: Whether to do so also for reverts that restored documents from
                files; see `Revert.files`.
        """
        intervals: list[Interval] = []
        # The last revert comes first, because it may have undone earlier reverts.
        for revert in reversed(self.reverts):
            is_between = start < revert.id <= end
            # A revert to before the start also undid events up to the start, which the caller has
            # applied. Only the block takes them back, so the block stays in the interval.
            undoes_start = revert.to < start
            may_skip = skip_restored_files or not revert.files
            if is_between and may_skip and not undoes_start:
                intervals.append((revert.id, end))
                end = revert.to
        intervals.append((start, end))
        intervals.reverse()
        return [(first, last) for first, last in intervals if first < last]

    def end_of_block(self, event: int) -> int:
        """Move an event that lies inside the block of a revert to the end of the block.

        A block must be applied as a whole, so no position may lie inside of one. Any other event is
        returned unchanged.

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
    """The events to apply next.

    Attributes:
        events: The events, oldest first.
        position: Ledger position after they are applied.
    """

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
        first: Id of the first event. None without events.
        last: Id of the last event. None without events.
        oldest: Time when the oldest event arrived, in seconds since 1970. None without events.
    """

    number: int
    first: int | None
    last: int | None
    oldest: float | None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest event in seconds. None without events."""
        if self.oldest is None:
            return None
        return max(0.0, time.time() - self.oldest)


@dataclass(frozen=True)
class LedgerView:
    """The ledger as seen from one generation.

    Every method is one transaction. A revert appends copies of pending events. An event and its
    copies count as one event here.

    Attributes:
        cursor: Part of the ledger that the generation contains.
    """

    _database: Database
    cursor: LedgerCursor

    def pending(self, limit: int | None = None) -> Pending:
        """Return the events that are not applied to the generation (snapshot of the index) yet.

        Args:
            limit: Number of puts and removals after which the result ends. None returns all events.
                Solve events between the last of these changes and the next one are included. If the
                limit lies inside the block of a revert, the whole block is included. The limit does
                not apply to a replay, where it is unknown which events the generation contains.
        """
        start = self.cursor.position.event
        with self._database.read() as connection:
            history = read_history(connection)
            last_id = connection.scalar(SELECT_LAST_ID)
            # The path leaves out events that a later revert undid.
            path = history.path(start, last_id, self.cursor.replay)
            end = last_id
            if limit is not None and not self.cursor.replay:
                end = _end_of_limit(connection, history, path, limit, last_id)

            pending: list[Event] = []
            for first, last in path:
                interval = {"start": first, "end": min(last, end)}
                for row in connection.execute(SELECT_APPLIED, interval):
                    pending.append(Event(**row._mapping))
            if not pending:
                return Pending((), self.cursor.position)
            return Pending(tuple(pending), position_at(connection, end))

    def backlog(self) -> Backlog:
        """Return the size and age of the pending events, without reading their contents.

        Pending events are recorded in the ledger, and not searchable yet.
        """
        query = sa.select(
            sa.func.count().label("number"),
            sa.func.min(events.c.id).label("first"),
            sa.func.max(events.c.id).label("last"),
            sa.func.min(events.c.received).label("oldest"),
        )
        with self._database.read() as connection:
            is_pending = in_intervals(self._path(connection))
            row = connection.execute(query.where(IS_CHANGE, is_pending)).one()
        return Backlog(row.number, row.first, row.last, row.oldest)

    def count_pending_with_queries(self) -> int:
        """Count the pending puts of documents that arrived with queries of their own.

        The database does the counting, so no contents are read.
        """
        has_queries = sa.func.json_array_length(events.c.payload["queries"]) > 0
        with self._database.read() as connection:
            is_pending = in_intervals(self._path(connection))
            return _count(connection, events, IS_CHANGE & has_queries & is_pending)

    def counts(self) -> dict[EventState, int]:
        """Count the events in each state.

        Each document has at most one event that is live, deleted or absorbed: its last effective
        one. So these numbers are numbers of documents, too.
        """
        with self._database.read() as connection:
            intervals = _Intervals.read(connection, self.cursor)
            # A revert appends compensations and copies of pending events. They are not counted,
            # because no person sent them.
            is_compensation = in_intervals(intervals.blocks)
            is_counted = IS_CHANGE & sa.not_(IS_COPY) & sa.not_(is_compensation)
            arrived = _count(connection, events, is_counted)

            # An event without copies is pending if it is on the path, the events to apply next. If
            # an event has copies, the answer depends on all of them, so it is asked for each event.
            copied_ids = sa.select(events.c.again).where(IS_COPY)
            has_no_copies = sa.not_(events.c.id.in_(copied_ids))
            is_on_path = in_intervals(intervals.path)
            pending = _count(connection, events, is_counted & has_no_copies & is_on_path)
            for ids in intervals.copies.values():
                if intervals.is_pending(ids):
                    pending += 1

            counts = dict.fromkeys(EventState, 0)
            counts.update(self._effective_counts(connection, intervals.effective))
            effective = sum(counts.values())
            counts[EventState.PENDING] = pending
            # Each event is effective, pending or undone by a revert.
            counts[EventState.ROLLED_BACK] = arrived - effective - pending
            counts[EventState.REJECTED] = _count(connection, rejections, sa.true())
        return counts

    def events(self, first: int, last: int) -> list[Event]:
        """Return the puts and removals from event `first` to `last`, oldest first, with states."""
        return self._select(events.c.id.between(first, last))

    def life(self, document_id: str) -> list[Event]:
        """Return all puts and removals of a document, oldest first, with their states."""
        return self._select(events.c.document_id == document_id)

    def arrivals(self, first: int, last: int) -> list[Event]:
        """Return the puts from event `first` to `last` whose content is searchable now.

        A put is left out if the generation does not contain it yet, or if a later event changed or
        removed its document. It is also left out if a revert undid it, or if the retriever may have
        been trained on the document.

        Args:
            first: Id of the first event.
            last: Id of the last event, which is included.

        Returns:
            The events in the state LIVE, oldest first, at most one per document.
        """
        with self._database.read() as connection:
            effective = read_history(connection).effective(self.cursor.position.event)
            last_ids = _last_by_document(effective)
            # Of an event and its copies, which have one state, only the last one is read.
            condition = sa.and_(
                events.c.id.between(first, last),
                events.c.kind == EventKind.PUT,
                events.c.id.in_(sa.select(last_ids.c.event)),
            )
            puts = select_events(connection, self.cursor, condition)
        return [event for event in puts if event.state == EventState.LIVE]

    def snapshot(self) -> Iterator[Document]:
        """Yield the generation's documents that have events in the ledger, by ascending id.

        Documents of the build that were never changed have no events, and are left out.
        """
        with self._database.read() as connection:
            effective = read_history(connection).effective(self.cursor.position.event)
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
            # The rows are read batch by batch, so that a large ledger does not fill the memory.
            streaming = connection.execution_options(yield_per=SNAPSHOT_BATCH_ROWS)
            for batch in streaming.execute(query).partitions():
                for row in batch:
                    yield Document.from_payload(row.document_id, row.payload)

    def _path(self, connection: sa.Connection) -> list[Interval]:
        """Return the intervals of the events that are not applied to the generation yet."""
        start = self.cursor.position.event
        last_id = connection.scalar(SELECT_LAST_ID)
        return read_history(connection).path(start, last_id, self.cursor.replay)

    def _effective_counts(
        self, connection: sa.Connection, effective: Iterable[Interval]
    ) -> Counter[EventState]:
        """Count the events in some intervals, the effective ones, by state.

        The last effective event of a document is live, absorbed or deleted. Its earlier effective
        events are superseded. States without events may be missing.
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
    """Return the puts and removals that meet a condition, oldest first, with their states.

    The state of an event depends on later events of the same document: the next effective event
    supersedes it. So the last effective event of each document is read as well.

    Args:
        connection: Connection of a transaction.
        cursor: Part of the ledger that the generation contains.
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
    """The intervals of event ids from which states follow; see the module docstring.

    Attributes:
        cursor: Part of the ledger that the generation contains.
        effective: Effective events of the generation.
        path: Events that lead from the generation to the end of the ledger.
        blocks: Blocks of all reverts.
        copies: For each event that a revert copied, the ids of the event and of its copies. The key
            is the id of the event.
    """

    cursor: LedgerCursor
    effective: list[Interval]
    path: list[Interval]
    blocks: list[Interval]
    copies: Mapping[int, list[int]]

    @classmethod
    def read(cls, connection: sa.Connection, cursor: LedgerCursor) -> _Intervals:
        """Read the reverts and copies of a ledger, as seen from the generation with this cursor."""
        history = read_history(connection)
        start = cursor.position.event
        last_id = connection.scalar(SELECT_LAST_ID)
        return cls(
            cursor,
            effective=history.effective(start),
            path=history.path(start, last_id, cursor.replay),
            blocks=history.blocks,
            copies=read_copies(connection),
        )

    def is_pending(self, ids: Iterable[int]) -> bool:
        """Return whether an event is pending.

        It is pending if the event or a copy of it will be applied, and none of them is applied
        already. Events inside the block of a revert are not pending, because they undo changes.

        Args:
            ids: Ids of the event and its copies.
        """
        will_be_applied = False
        for event_id in ids:
            if contains(self.effective, event_id):
                return False
            if contains(self.path, event_id) and not contains(self.blocks, event_id):
                will_be_applied = True
        return will_be_applied

    def state(self, event: Event, last: int | None) -> EventState | None:
        """Return the state of an event, seen from the generation (a snapshot of the index).

        An event is effective if the generation contains it, and no revert undid it. A revert copies
        pending events. An event and its copies have the same state.

        Args:
            event: The event.
            last: Id of the last effective event of the event's document. None without one.

        Returns:
            The state. None for a compensation, an event that a revert appended to undo a change.
        """
        original = event.id if event.again is None else event.again
        ids = self.copies.get(original, [event.id])
        effective_ids = [event_id for event_id in ids if contains(self.effective, event_id)]
        if effective_ids:
            if last not in effective_ids:
                return EventState.SUPERSEDED
            is_trained = effective_ids[0] <= self.cursor.trained
            return state_of(event.kind, is_trained)

        is_compensation = contains(self.blocks, event.id)
        if is_compensation:
            return None
        if self.is_pending(ids):
            return EventState.PENDING
        return EventState.ROLLED_BACK


def state_of(kind: str, trained: bool) -> EventState:
    """Return the state of the last effective event of a document.

    An event is effective if no revert undid it.

    Args:
        kind: Kind of the event.
        trained: Whether the retriever may have been trained on the document.
    """
    if kind == EventKind.REMOVE:
        return EventState.DELETED
    if trained:
        return EventState.ABSORBED
    return EventState.LIVE


def read_history(connection: sa.Connection) -> History:
    """Read all reverts of the ledger.

    A revert takes all documents back to an earlier state, and so undoes the events in between.
    """
    reverts: list[Revert] = []
    for event, payload in connection.execute(SELECT_REVERTS):
        fields = dict(payload)
        # The block of a revert without compensations consists only of the event of the revert.
        if fields["first"] is None:
            fields["first"] = event
        reverts.append(Revert(event, **fields))
    return History(reverts)


def read_copies(connection: sa.Connection) -> dict[int, list[int]]:
    """Find all events that a revert has copied to the end of the ledger.

    A revert copies the events that no search has found yet, so that it does not undo them.

    Returns:
        For each copied event, the ascending ids of the event and its copies. The key is the id of
        the event.
    """
    copies: dict[int, list[int]] = {}
    query = sa.select(events.c.id, events.c.again).where(IS_COPY).order_by(events.c.id)
    for copy, original in connection.execute(query):
        copies.setdefault(original, [original]).append(copy)
    return copies


def mark(event: int, received: float, document_id: str, content_hash: str) -> str:
    """Return the mark of an event: eight hexadecimal digits of a hash.

    After a ledger was copied, the copy and the original may record different events with the same
    id. Their marks differ, so the mark tells which of the two ledgers a position belongs to.

    >>> mark(1, 0.1, "a", "b")
    'c85b8cf8'
    """
    return hash_text(f"{event} {received!r} {document_id} {content_hash}")[:8]


def position_at(connection: sa.Connection, event: int) -> Position:
    """Return the ledger position of an event.

    The position consists of the identity of the ledger, the id of the event and the mark of the
    event; see `mark`. The mark is empty if the ledger has no such event.
    """
    row = connection.execute(SELECT_MARKED_EVENT, {"event": event}).one()
    received, document_id, content_hash, log_id = row
    event_mark = ""
    if received is not None:
        event_mark = mark(event, received, document_id, content_hash)
    return Position(log_id, event, event_mark)


def in_intervals(intervals: Iterable[Interval]) -> sa.ColumnElement[bool]:
    """Return the SQL condition that an event lies in one of the intervals.

    An interval (start, end) has the events after `start`, up to and including `end`.
    """
    conditions = [(events.c.id > start) & (events.c.id <= end) for start, end in intervals]
    # Without intervals, no event meets the condition.
    return sa.or_(sa.false(), *conditions)


def last_events(
    connection: sa.Connection,
    document_ids: Iterable[str],
    *columns: sa.Column[Any],
    within: Iterable[Interval] | None = None,
) -> list[sa.Row[Any]]:
    """Return the last event that put or removed each document, in no particular order.

    Args:
        connection: Connection of a transaction.
        document_ids: Ids of the documents. Documents without an event are left out.
        *columns: Columns of `events` to return. All by default.
        within: Intervals in which the events must lie. None means the whole ledger.
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


def _end_of_limit(
    connection: sa.Connection,
    history: History,
    path: Sequence[Interval],
    limit: int,
    last_id: int,
) -> int:
    """Return the id of the last event to apply, if only `limit` changes are applied at once.

    Solve events after the last of these changes are applied as well, up to the next change. If the
    result lay inside the block of a revert, it is moved to the end of the block.

    Args:
        connection: Connection of a transaction.
        history: The reverts of the ledger.
        path: All events to apply, as intervals.
        limit: Number of puts and removals to apply at once.
        last_id: Id of the last event of the ledger. It is returned if the limit is not reached.
    """
    query = sa.select(events.c.id).where(in_intervals(path), IS_CHANGE).order_by(events.c.id)
    change_ids = connection.scalars(query.limit(limit + 1)).all()
    if len(change_ids) <= limit:
        return last_id

    last_change = change_ids[limit - 1]
    next_change = change_ids[limit]
    # Solve events do not count as changes. Those between these two changes are applied, too.
    last_solve = _last_solve_between(connection, path, last_change, next_change)
    end = last_change if last_solve is None else last_solve
    return history.end_of_block(end)


def _last_solve_between(
    connection: sa.Connection, intervals: Iterable[Interval], after: int, before: int
) -> int | None:
    """Return the id of the last solve event between two events, or None.

    A solve event asks IncDSI to solve the vector of a document again.

    Args:
        connection: Connection of a transaction.
        intervals: Intervals in which the event must lie.
        after: The id must be larger.
        before: The id must be smaller.
    """
    is_solve = events.c.kind == EventKind.SOLVE
    is_between = (events.c.id > after) & (events.c.id < before)
    query = sa.select(sa.func.max(events.c.id)).where(in_intervals(intervals), is_solve, is_between)
    return connection.scalar(query)


def _last_by_document(intervals: Iterable[Interval]) -> sa.Subquery:
    """Return a subquery with one row per document that has events in some intervals.

    Its columns are `event`, the id of the last put or removal, and `number`, the number of puts and
    removals.
    """
    last_event = sa.func.max(events.c.id).label("event")
    number = sa.func.count().label("number")
    return (
        sa.select(last_event, number)
        .where(in_intervals(intervals), IS_CHANGE)
        .group_by(events.c.document_id)
        .subquery()
    )


def _count(connection: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    """Count the rows of a table that meet a condition."""
    query = sa.select(sa.func.count()).select_from(table).where(condition)
    return connection.scalar(query) or 0
