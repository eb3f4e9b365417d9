"""The log of one project: an append-only record of every document's life, which all of its
retrievers share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from model_code.collection.ledger.database import (
    Database,
    batches,
    chunks,
    drift_reports,
    events,
    feedback,
    log,
    open_database,
    rejections,
    upsert,
)
from model_code.collection.ledger.events import (
    ANOTHER,
    EventKind,
    EventState,
    Feedback,
    LedgerCursor,
    Opinion,
    Position,
    Receipt,
)
from model_code.collection.ledger.states import (
    HEAD,
    IS_CHANGE,
    Event,
    LedgerView,
    Revert,
    contains,
    history_of,
    in_intervals,
    last_events,
    position_at,
    repeats_of,
    select_events,
)
from model_code.collection.ledger.tasks import TaskTable
from model_code.corpus.rows import Rejection
from model_code.errors import FreshetError
from model_code.files import hash_text
from model_code.text.documents import Document

DocumentContents = Mapping[str, tuple[str, Document]]
"""By id, the content hash of a document in a generation's files, and the document as these tell it
"""
Row = dict[str, Any]
"""Kind, document, content hash and payload of an event to append"""
APPEND = sa.insert(events).returning(events.c.id, sort_by_parameter_order=True)
LAST = sa.select(events.c.document_id, events.c.kind, events.c.content_hash).where(
    events.c.id.in_(
        sa.select(sa.func.max(events.c.id))
        .where(events.c.document_id.in_(sa.bindparam("ids", expanding=True)))
        .group_by(events.c.document_id)
    )
)


@dataclass(frozen=True)
class RevertTarget:
    """A generation to go back to: whose it is, its number, where it stands, and the one that is
    current.

    contents: reads those of some documents that its files hold.
    """

    retriever: str
    generation: int
    cursor: LedgerCursor
    current: int
    current_cursor: LedgerCursor
    contents: Callable[[Collection[str]], DocumentContents]


class Ledger:
    """What arrived, in order. Every method is one transaction; writers take turns, in any number of
    threads and processes. Times are seconds since 1970.

    Events are told by their ids, which only rise. `view_at` tells what became of them in a
    generation. retriever: whose drift reports are meant; events and work are everybody's.
    """

    def __init__(self, database: Database, retriever: str = "") -> None:
        self._database, self.retriever = database, retriever
        self.close, self.is_replaced, self.damage = (
            database.close,
            database.is_replaced,
            database.damage,
        )
        self.tasks = TaskTable(database)

    @classmethod
    def open(
        cls, url: str, retriever: str = "", migrate: Callable[[Database], None] | None = None
    ) -> Ledger:
        """Open or make the log at an SQLAlchemy URL such as `sqlite:////srv/ledger.sqlite` (three
        or four slashes) or `postgresql+psycopg://...`; FreshetError if it cannot be opened or is of
        another version.

        migrate: see `open_database`.
        """
        return cls(open_database(url, migrate), retriever)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def id(self) -> str:
        """The identity of this log, which no other one has."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(log.c.log))

    # What arrives

    def receive(
        self,
        documents: Iterable[Document],
        source: str,
        rejected: Sequence[Rejection] = (),
        batch: str | None = None,
    ) -> Receipt:
        """Append an event for each document that is new or has another content than its last event.

        rejected: rows of the same batch that were refused, kept with their reason; batch: a name,
        such as a file's hash, that is received once only: a second time only rows that were refused
        then, or taken back since, are.
        """
        return self._append([put_row(document) for document in documents], source, rejected, batch)

    def remove(
        self, document_ids: Iterable[str], source: str, rejected: Sequence[Rejection] = ()
    ) -> Receipt:
        """Append a removal for each document whose last event is none; it may belong to the initial
        collection.
        """
        return self._append([removal_row(each) for each in document_ids], source, rejected, None)

    def _append(
        self, rows: Sequence[Row], source: str, rejected: Sequence[Rejection], batch: str | None
    ) -> Receipt:
        arrival = {"source": source, "received": time.time()}
        with self._database.write() as connection:
            last = {row["document_id"]: row for row in rows}
            new = [row for row in rows if row is last[row["document_id"]]]
            if batch is not None:
                new = _not_received(connection, batch, new)
                upsert(connection, batches, [{"batch": batch, **arrival}], "batch")
            contents = _last_contents(connection, last)
            new = [
                row
                for row in new
                if contents.get(row["document_id"]) != (row["kind"], row["content_hash"])
            ]
            added = insert_events(connection, [row | arrival for row in new])
            if rejected:
                records = [
                    {"hash": _identity(row, source), **vars(row), **arrival} for row in rejected
                ]
                upsert(connection, rejections, records, "hash")
        return Receipt(len(rows) + len(rejected), len(rows) - len(added), tuple(rejected), added)

    def erase(self, document_ids: Collection[str]) -> None:
        """Forget what removed documents held; ids, times and hashes stay. FreshetError if one is
        not removed.

        From then on an event that put one of them reads as its removal.
        """
        with self._database.write() as connection:
            for document_id, (kind, _) in sorted(_last_contents(connection, document_ids).items()):
                if kind == EventKind.PUT:
                    raise FreshetError(f"{document_id} was put again meanwhile; delete it first")
            for ids in chunks(sorted(document_ids)):
                put = events.c.document_id.in_(ids) & (events.c.kind == EventKind.PUT)
                connection.execute(sa.update(events).where(put).values(payload=None))
                connection.execute(sa.delete(feedback).where(feedback.c.document_id.in_(ids)))
        self._database.forget()

    # What people say of it

    def record_feedback(self, verdict: Feedback, now: float | None = None) -> str:
        """Keep a verdict, and return the one that counts: of one person, query and document the
        latest, save that a click takes no thumb back.
        """
        row = vars(verdict) | {"hash": verdict.key, "received": time.time() if now is None else now}
        thumb_stays = sa.literal(verdict.verdict) != Opinion.CLICK
        with self._database.write() as connection:
            upsert(
                connection,
                feedback,
                [row],
                "hash",
                where=thumb_stays | (feedback.c.verdict == Opinion.CLICK),
            )
            return connection.scalar(
                sa.select(feedback.c.verdict).where(feedback.c.hash == verdict.key)
            )

    def feedback(self) -> list[Feedback]:
        """All verdicts that count, oldest first."""
        columns = [feedback.c[name] for name in Feedback.__dataclass_fields__]
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(*columns).order_by(feedback.c.received, feedback.c.hash)
            )
            return [Feedback(**row._mapping) for row in rows]

    # Going back

    def revert(self, target: RevertTarget) -> int:
        """Take the documents back to what a generation holds; return the id of the event that says
        so.

        Appends a compensation for each document that changed since, that event, and then once more
        what no search has found yet: it waits on. One transaction, so all of it happens or nothing.
        FreshetError if the generation's files still hold a document that was erased.
        """
        received, cursor = time.time(), target.cursor
        # for good: no event ever changes
        exact = not cursor.replay and self.mismatch(cursor.position) is None
        to = cursor.position.event if exact else 0
        with self._database.write() as connection:
            waiting = _pending_ids(connection, to, target.current_cursor.position.event)
            source = f"revert to {target.retriever} generation {target.generation}"
            common = {"source": source, "received": received}
            rows = _compensations(connection, to, target)
            first = next(iter(insert_events(connection, [row | common for row in rows])), None)
            facts = {
                "to": to,
                "files": not exact,
                "first": first,
                "retriever": target.retriever,
                "generation": target.generation,
                "current": target.current,
            }
            row = {
                "kind": EventKind.REVERT,
                "document_id": "",
                "content_hash": "",
                "payload": facts,
                **common,
            }
            (event,) = insert_events(connection, [row])
            _repeat(connection, waiting)
        return event

    def last_revert(self) -> Revert | None:
        """The last revert, None without one."""
        with self._database.read() as connection:
            reverts = history_of(connection).reverts
        return reverts[-1] if reverts else None

    # Positions

    def position(self, event: int | None = None) -> Position:
        """The position of an event, or of the last one."""
        with self._database.read() as connection:
            return position_at(connection, connection.scalar(HEAD) if event is None else event)

    def mismatch(self, position: Position) -> str | None:
        """Why the position is none of this log: that this is "another log", or "an older copy of
        it"; None if it is.
        """
        if position.log is None:
            return None
        actual = self.position(position.event)
        if actual.log != position.log:
            return ANOTHER
        return None if actual == position else "an older copy of it"

    def view_at(self, cursor: LedgerCursor) -> LedgerView:
        """The log as a generation sees it that stands there."""
        return LedgerView(self._database, cursor)

    # Questions

    def latest(self, document_ids: Iterable[str]) -> dict[str, Event]:
        """The last event of each of those documents that the log knows, by id."""
        with self._database.read() as connection:
            return {
                row.document_id: Event(**row._mapping)
                for row in last_events(connection, document_ids)
            }

    def content_hashes(self) -> dict[str, str]:
        """By id, the content hash of each document that the log names, by its last event; "" for a
        removal.
        """
        last = sa.select(sa.func.max(events.c.id)).where(IS_CHANGE)
        query = sa.select(events.c.document_id, events.c.content_hash)
        with self._database.read() as connection:
            rows = connection.execute(
                query.where(events.c.id.in_(last.group_by(events.c.document_id)))
            )
            return dict(map(tuple, rows))

    def document_sources(self) -> dict[str, str]:
        """By id, the source that a document last arrived from; what a revert brought back came from
        where it was.
        """
        arrived = (events.c.kind == EventKind.PUT) & sa.not_(
            events.c.source.startswith("revert to ")
        )
        last = sa.select(sa.func.max(events.c.id)).where(arrived).group_by(events.c.document_id)
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(events.c.document_id, events.c.source).where(events.c.id.in_(last))
            )
            return {document_id: source for document_id, source in rows}

    def recent_rejections(self, number: int) -> list[Row]:
        """The last refused rows, newest first, with row, document_id, reason, source and time
        received.
        """
        columns = (
            rejections.c[name] for name in ("row", "document_id", "reason", "source", "received")
        )
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(*columns).order_by(rejections.c.id.desc()).limit(number)
            )
            return [dict(row._mapping) for row in rows]

    # What was measured

    def record_drift_report(self, report: Mapping[str, Any], batch: tuple[int, int]) -> int:
        """Keep a drift report (values JSON can hold) on the events from batch[0] to batch[1];
        return its id.
        """
        row = {
            "report": dict(report),
            "first_event": batch[0],
            "last_event": batch[1],
            "retriever": self.retriever,
        }
        with self._database.write() as connection:
            added = connection.execute(sa.insert(drift_reports).values(**row, recorded=time.time()))
            return added.inserted_primary_key[0]

    def recent_drift_reports(self, number: int) -> list[Row]:
        """The last drift reports, newest first, with first_event, last_event, report and time
        recorded.
        """
        newest = drift_reports.c.recorded.desc(), drift_reports.c.id.desc()
        query = (
            sa.select(drift_reports)
            .where(drift_reports.c.retriever == self.retriever)
            .order_by(*newest)
        )
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query.limit(number))]


def put_row(document: Document) -> Row:
    """A document that arrived, as a row to append."""
    facts = {"content_hash": document.content_hash, "payload": document.payload}
    return {"kind": EventKind.PUT, "document_id": document.document_id, **facts}


def removal_row(document_id: str) -> Row:
    """A removal, as a row to append."""
    return {
        "kind": EventKind.REMOVE,
        "document_id": document_id,
        "content_hash": "",
        "payload": None,
    }


def insert_events(connection: sa.Connection, rows: Sequence[Row]) -> tuple[int, ...]:
    """Append events in their order; return their ids."""
    if not rows:
        return ()
    return tuple(connection.scalars(APPEND, rows))


def _last_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Kind and content hash of the last event of each document."""
    rows = (
        row
        for ids in chunks(sorted(document_ids))
        for row in connection.execute(LAST, {"ids": ids})
    )
    return {name: (kind, content) for name, kind, content in rows}


def _not_received(connection: sa.Connection, batch: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of a batch to receive: all of a new one; of a known one those refused then, or taken
    back since.

    The others were received: a later change or removal of their documents stands.
    """
    if connection.scalar(sa.select(batches.c.batch).where(batches.c.batch == batch)) is None:
        return list(rows)
    cursor = _counting_contents(connection, [row["document_id"] for row in rows])
    return [row for row in rows if (row["document_id"], row["content_hash"]) not in cursor]


def _counting_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> set[tuple[str, str]]:
    """Document and content hash of what was put and, the last time that it was, still counts.

    What waited while a revert came was put once, though the log has it twice.
    """
    head = LedgerCursor(Position(event=connection.scalar(HEAD)))
    last: dict[tuple[str, str], EventState] = {}
    for ids in chunks(sorted(document_ids)):
        puts = events.c.document_id.in_(ids) & (events.c.kind == EventKind.PUT)
        arrived = (
            event for event in select_events(connection, head, puts) if event.state is not None
        )
        last |= {(event.document_id, event.content_hash): event.state for event in arrived}  # type: ignore[misc]
    return {content for content, state in last.items() if state != EventState.ROLLED_BACK}


def _identity(refused: Rejection, source: str) -> str:
    return hash_text(
        "\0".join((source, str(refused.row), refused.document_id or "", refused.reason))
    )


def _compensations(connection: sa.Connection, to: int, target: RevertTarget) -> list[Row]:
    """What takes each document that changed after the event `to` back to what it was then, by
    document.

    The generation's files tell it of documents that no event names until then.
    """
    named = sa.select(events.c.document_id).where(events.c.id > to, IS_CHANGE).distinct()
    later = sorted(connection.scalars(named))
    now = _last_contents(connection, later)
    before = _contents_at(connection, later, to)
    files = target.contents(
        {key for key in later if key not in before or before[key]["kind"] != EventKind.PUT}
    )
    # removed, as the log reads it, and yet in the files
    if erased := sorted(before.keys() & files.keys()):
        raise FreshetError(
            f"generation {target.generation} still holds {erased[0]}, which was erased; go back to another one, "
            f"or finish it: freshet delete --erase {erased[0]}"
        )
    built = {key: put_row(document) for key, (_, document) in files.items()} | _logged_rows(
        connection, files
    )
    rows = (built.get(key) or before.get(key) or removal_row(key) for key in later)
    return [row for row in rows if now[row["document_id"]] != (row["kind"], row["content_hash"])]


def _contents_at(
    connection: sa.Connection, document_ids: Iterable[str], event: int
) -> dict[str, Row]:
    """What the last event up to `event` said of each document, as a row to append."""
    rows, columns = (
        {},
        (events.c.kind, events.c.document_id, events.c.content_hash, events.c.payload),
    )
    for row in last_events(connection, document_ids, *columns, within=[(0, event)]):
        erased = row.kind == EventKind.PUT and row.payload is None  # which does not come back
        rows[row.document_id] = removal_row(row.document_id) if erased else dict(row._mapping)
    return rows


def _logged_rows(connection: sa.Connection, files: DocumentContents) -> dict[str, Row]:
    """The documents of files as the log has them, where it does.

    Files of earlier versions told neither queries nor dates, and the dates went into no content
    hash.
    """
    rows: dict[str, Row] = {}
    for ids in chunks(sorted(files)):
        query = (
            sa.select(events)
            .where(
                events.c.document_id.in_(ids),
                events.c.kind == EventKind.PUT,
                events.c.payload.is_not(None),
            )
            .order_by(events.c.id)
        )
        for row in connection.execute(query):
            document = Document.from_payload(row.document_id, row.payload)
            if files[row.document_id][0] in (
                row.content_hash,
                replace(document, date=None).content_hash,
            ):
                rows[row.document_id] = put_row(document)
    return rows


def _pending_ids(connection: sa.Connection, to: int, current: int) -> list[int]:
    """The events that count, but neither at `to` nor at `current`: no search has found them yet."""
    history, repeats = history_of(connection), repeats_of(connection)
    searched = [*history.effective(current), *history.effective(to)]
    repeated = {
        each
        for same in repeats.values()
        if any(contains(searched, event) for event in same)
        for each in same
    }
    counting = in_intervals(history.effective(connection.scalar(HEAD))) & sa.not_(
        in_intervals(searched)
    )
    query = sa.select(events.c.id).where(counting, IS_CHANGE).order_by(events.c.id)
    return [event for event in connection.scalars(query) if event not in repeated]


def _repeat(connection: sa.Connection, waiting: Sequence[int]) -> None:
    """Append events once more, which say so."""
    names = ("kind", "document_id", "content_hash", "payload", "source", "received", "again")
    copied = [events.c[name] for name in names[:-1]]
    for ids in chunks(list(waiting)):
        rows = sa.select(*copied, sa.func.coalesce(events.c.again, events.c.id)).where(
            events.c.id.in_(ids)
        )
        connection.execute(sa.insert(events).from_select(names, rows.order_by(events.c.id)))
