"""The ledger of a project: the append-only log of changes, feedback and tasks.

All retrievers of a project share one ledger.
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
    forgotten_queries,
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
    VersionCondition,
)
from model_code.collection.ledger.states import (
    IS_CHANGE,
    SELECT_LAST_ID,
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
from model_code.corpus.known_queries import query_hash
from model_code.corpus.rows import Rejection
from model_code.errors import FreshetError
from model_code.files import hash_text
from model_code.text.documents import Document

# Beginning of the reason why a row is refused whose document has another version.
VERSION_CONFLICT = "version conflict"
# Characters of a version in a message.
SHOWN_VERSION = 12

DocumentContents = Mapping[str, Document]
"""Documents of a generation's files, by id."""

Row = dict[str, Any]
"""A row to insert, or one that was read, by column names."""

INSERT_EVENTS = sa.insert(events).returning(events.c.id, sort_by_parameter_order=True)
SELECT_LAST_CONTENTS = sa.select(events.c.document_id, events.c.kind, events.c.content_hash).where(
    events.c.id.in_(
        sa.select(sa.func.max(events.c.id))
        .where(events.c.document_id.in_(sa.bindparam("ids", expanding=True)), IS_CHANGE)
        .group_by(events.c.document_id)
    )
)


@dataclass(frozen=True)
class RevertTarget:
    """A generation to revert to, and the generation that is current.

    Attributes:
        retriever: Retriever of both generations.
        generation: Number of the generation to revert to.
        cursor: Its ledger cursor.
        current: Number of the current generation.
        current_cursor: Its ledger cursor.
        contents: Reads documents, by their ids, from the files of the generation to revert to.
            Documents that it does not have are left out.
    """

    retriever: str
    generation: int
    cursor: LedgerCursor
    current: int
    current_cursor: LedgerCursor
    contents: Callable[[Collection[str]], DocumentContents]


class Ledger:
    """The ledger of a project.

    Every method is one transaction. Writers take turns, in any number of threads and processes.
    Events are identified by ids, which only rise. All times are seconds since 1970.

    Drift reports belong to one retriever, events and tasks to the project.
    """

    def __init__(self, database: Database, retriever: str = "") -> None:
        """Use an open database.

        Args:
            database: Database of the ledger.
            retriever: Retriever whose drift reports are read and written.
        """
        self._database = database
        self.retriever = retriever
        self.tasks = TaskTable(database)
        self.close = database.close
        self.is_replaced = database.is_replaced
        self.damage = database.damage

    @classmethod
    def open(cls, url: str, retriever: str = "") -> Ledger:
        """Open a ledger, or create it.

        Args:
            url: SQLAlchemy URL, such as `sqlite:////srv/ledger.sqlite` (four slashes for an
                absolute path) or `postgresql+psycopg://...`.
            retriever: Retriever whose drift reports are read and written.

        Raises:
            FreshetError: If the ledger cannot be opened, or has another format.
        """
        return cls(open_database(url), retriever)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def id(self) -> str:
        """The identity of this ledger, which no other ledger has."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(log.c.log))

    def receive(
        self,
        documents: Iterable[Document],
        source: str,
        rejected: Sequence[Rejection] = (),
        batch: str | None = None,
        conditions: Mapping[str, VersionCondition] = {},
    ) -> Receipt:
        """Append an event for each document that is new or has another content than before.

        Args:
            documents: Documents to record. Of several with one id, the last one counts.
            source: Where the documents come from.
            rejected: Refused rows of the same batch, which are kept with their reasons.
            batch: Name of the batch, such as the hash of a file. A batch is received once: a second
                time, only rows that were refused or reverted meanwhile are recorded.
            conditions: Versions that documents must have, by document id. They are checked in the
                transaction. A document with another version is rejected, unless it has the new
                content already.

        Returns:
            The numbers of new, unchanged and rejected rows, with the ids of the new events.
        """
        rows = [put_row(document) for document in documents]
        return self._append(rows, source, rejected, batch, conditions)

    def remove(
        self,
        document_ids: Iterable[str],
        source: str,
        rejected: Sequence[Rejection] = (),
        conditions: Mapping[str, VersionCondition] = {},
    ) -> Receipt:
        """Append a removal for each document whose last event is not one.

        A document without an event may belong to the build, so that its removal is recorded too.

        Args:
            document_ids: Documents to remove.
            source: Where the removals come from.
            rejected: Refused rows of the same request, which are kept with their reasons.
            conditions: Versions that documents must have, as in `receive`.

        Returns:
            The numbers of new, unchanged and rejected rows, with the ids of the new events.
        """
        rows = [removal_row(document_id) for document_id in document_ids]
        return self._append(rows, source, rejected, None, conditions)

    def _append(
        self,
        rows: Sequence[Row],
        source: str,
        rejected: Sequence[Rejection],
        batch: str | None,
        conditions: Mapping[str, VersionCondition],
    ) -> Receipt:
        arrival = {"source": source, "received": time.time()}
        last_rows = {row["document_id"]: row for row in rows}
        new = [row for row in rows if row is last_rows[row["document_id"]]]
        with self._database.write() as connection:
            if batch is not None:
                new = _unreceived_rows(connection, batch, new)
                upsert(connection, batches, [{"batch": batch, **arrival}], "batch")

            contents = _last_contents(connection, last_rows)
            changed: list[Row] = []
            conflicts: list[Rejection] = []
            for row in new:
                content = (row["kind"], row["content_hash"])
                if contents.get(row["document_id"]) == content:
                    continue
                conflict = _version_conflict(row, contents, conditions)
                if conflict is None:
                    changed.append({**row, **arrival})
                else:
                    conflicts.append(conflict)
            rejected = (*rejected, *conflicts)
            event_ids = insert_events(connection, changed)

            if rejected:
                refused_rows: list[Row] = []
                for rejection in rejected:
                    identity = {"hash": _rejection_hash(rejection, source)}
                    refused_rows.append({**identity, **vars(rejection), **arrival})
                upsert(connection, rejections, refused_rows, "hash")
        return Receipt(
            received=len(rows) + len(rejected) - len(conflicts),
            unchanged=len(rows) - len(event_ids) - len(conflicts),
            rejected=tuple(rejected),
            events=event_ids,
        )

    def rename_documents(
        self, documents: Mapping[str, Document], versions: Mapping[str, str], source: str
    ) -> Receipt:
        """Give documents other ids, in one transaction. Their feedback follows.

        Args:
            documents: The documents with their new ids, by old id.
            versions: Content hash that each document has, by old id.
            source: Where the documents come from.

        Returns:
            The numbers of documents, with the ids of the new events.

        Raises:
            FreshetError: If a document was changed meanwhile. Nothing is changed then.
        """
        arrival = {"source": source, "received": time.time()}
        rows: list[Row] = []
        for old_id, document in documents.items():
            rows.append({**put_row(document), **arrival})
            rows.append({**removal_row(old_id), **arrival})

        with self._database.write() as connection:
            contents = _last_contents(connection, documents)
            for old_id, content in contents.items():
                if content != (EventKind.PUT, versions[old_id]):
                    raise FreshetError(f"{old_id!r} was changed meanwhile; run the command again")
            event_ids = insert_events(connection, rows)
            new_ids = {old_id: document.document_id for old_id, document in documents.items()}
            _move_feedback(connection, new_ids)
        return Receipt(received=len(documents), unchanged=0, rejected=(), events=event_ids)

    def erase(self, document_ids: Collection[str]) -> None:
        """Delete the contents and feedback of removed documents; ids, times and hashes stay.

        From then on, an event that put such a document reads as its removal.

        Args:
            document_ids: Documents to erase.

        Raises:
            FreshetError: If a document is not removed, or the ledger is being read.
        """
        with self._database.write() as connection:
            last_contents = _last_contents(connection, document_ids)
            for document_id, (kind, _) in sorted(last_contents.items()):
                if kind == EventKind.PUT:
                    raise FreshetError(f"{document_id} was put again meanwhile; delete it first")

            for ids in chunks(sorted(document_ids)):
                is_of_document = events.c.document_id.in_(ids)
                connection.execute(sa.update(events).where(is_of_document).values(payload=None))
                connection.execute(sa.delete(feedback).where(feedback.c.document_id.in_(ids)))
        self._database.vacuum()

    def record_solves(self, queries: Mapping[str, Collection[str]], source: str) -> None:
        """Append an event for each document whose vector is to be solved again.

        Args:
            queries: Hashes of the queries that the vector is solved for, by document id; see
                `query_hash`. Hashes keep the texts in one place, from which they can be deleted.
            source: Why the vectors are solved again.
        """
        arrival = {"source": source, "received": time.time()}
        rows: list[Row] = []
        for document_id, hashes in sorted(queries.items()):
            row = {
                "kind": EventKind.SOLVE,
                "document_id": document_id,
                "content_hash": "",
                "payload": {"queries": sorted(hashes)},
            }
            rows.append({**row, **arrival})
        with self._database.write() as connection:
            insert_events(connection, rows)

    def record_feedback(self, verdict: Feedback, now: float | None = None) -> str:
        """Record an opinion about a hit, and return the opinion that counts.

        For one person, query and document the latest opinion counts, but a click never replaces a
        thumb.

        Args:
            verdict: Opinion to record.
            now: Time of the opinion; None means the current time.
        """
        received = time.time() if now is None else now
        row = {**vars(verdict), "hash": verdict.key, "received": received}
        may_replace = sa.or_(
            sa.literal(verdict.verdict) != Opinion.CLICK, feedback.c.verdict == Opinion.CLICK
        )
        with self._database.write() as connection:
            upsert(connection, feedback, [row], "hash", where=may_replace)
            query = sa.select(feedback.c.verdict).where(feedback.c.hash == verdict.key)
            return connection.scalar(query)

    def withdraw_feedback(self, who: str, query: str, document_id: str) -> bool:
        """Delete the opinion of a person about a hit, and return whether there was one."""
        key = Feedback(query, document_id, Opinion.UP, who=who).key
        with self._database.write() as connection:
            deleted = connection.execute(sa.delete(feedback).where(feedback.c.hash == key))
        return deleted.rowcount > 0

    def feedback(self) -> list[Feedback]:
        """Return all opinions that count, oldest first."""
        columns = [feedback.c[name] for name in Feedback.__dataclass_fields__]
        query = sa.select(*columns).order_by(feedback.c.received, feedback.c.hash)
        with self._database.read() as connection:
            return [Feedback(**row._mapping) for row in connection.execute(query)]

    def forget_query(self, text: str, now: float | None = None) -> int:
        """Delete the feedback on a query, and record that it must not be known.

        Args:
            text: The query. Only the hash of its normalised text is recorded.
            now: Time of the request; None means the current time.

        Returns:
            The number of deleted opinions.
        """
        received = time.time() if now is None else now
        forgotten = query_hash(text)
        with self._database.write() as connection:
            hashes: list[str] = []
            for row_hash, query in connection.execute(sa.select(feedback.c.hash, feedback.c.query)):
                if query_hash(query) == forgotten:
                    hashes.append(row_hash)
            for chunk in chunks(hashes):
                connection.execute(sa.delete(feedback).where(feedback.c.hash.in_(chunk)))
        self.record_forgotten(forgotten, received)
        self._database.vacuum()
        return len(hashes)

    def record_forgotten(self, forgotten: str, received: float) -> None:
        """Record the hash of a query that must not be known, and the time of the request."""
        with self._database.write() as connection:
            row = {"hash": forgotten, "received": received}
            upsert(connection, forgotten_queries, [row], "hash")

    def erase_query(self, text: str) -> None:
        """Remove a query from the contents of all events.

        Args:
            text: The query; it is recognised by its normalised text.
        """
        forgotten = query_hash(text)
        with self._database.write() as connection:
            columns = (events.c.id, events.c.document_id, events.c.payload)
            select = sa.select(*columns).where(events.c.payload.is_not(None))
            contents = connection.execute(select.where(events.c.kind == EventKind.PUT)).all()
            for event_id, document_id, payload in contents:
                kept = [query for query in payload["queries"] if query_hash(query) != forgotten]
                if len(kept) == len(payload["queries"]):
                    continue
                payload["queries"] = kept
                document = Document.from_payload(document_id, payload)
                values = {"payload": payload, "content_hash": document.content_hash}
                is_event = events.c.id == event_id
                connection.execute(sa.update(events).where(is_event).values(values))
        self._database.vacuum()

    def forgotten_queries(self) -> frozenset[str]:
        """Return the hashes of the queries that must not be known."""
        return frozenset(self.forgotten_times())

    def forgotten_times(self) -> dict[str, float]:
        """Return when each query was forgotten, by its hash, ascending."""
        query = sa.select(forgotten_queries).order_by(forgotten_queries.c.hash)
        with self._database.read() as connection:
            return {row.hash: row.received for row in connection.execute(query)}

    def revert(self, target: RevertTarget) -> int:
        """Take all documents back to what a generation holds.

        One transaction appends a compensation for each document that changed since, then the event
        of the revert, and then once more every event that no search had found yet, which stays
        pending.

        Args:
            target: Generation to revert to, and the current one.

        Returns:
            Id of the revert's own event.

        Raises:
            FreshetError: If the generation's files still hold a document that was erased.
        """
        cursor = target.cursor
        # This may be checked outside of the transaction, because events never change.
        is_known = not cursor.replay and self.mismatch(cursor.position) is None
        to = cursor.position.event if is_known else 0
        arrival = {
            "source": f"revert to {target.retriever} generation {target.generation}",
            "received": time.time(),
        }
        with self._database.write() as connection:
            pending = _pending_ids(connection, to, target.current_cursor.position.event)
            compensations = _compensations(connection, to, target)
            ids = insert_events(connection, [{**row, **arrival} for row in compensations])
            revert = {
                "to": to,
                "files": not is_known,
                "first": ids[0] if ids else None,
                "retriever": target.retriever,
                "generation": target.generation,
                "current": target.current,
            }
            row = {
                "kind": EventKind.REVERT,
                "document_id": "",
                "content_hash": "",
                "payload": revert,
                **arrival,
            }
            (revert_id,) = insert_events(connection, [row])
            _append_again(connection, pending)
        return revert_id

    def last_revert(self) -> Revert | None:
        """Return the last revert, or None if there was none."""
        with self._database.read() as connection:
            reverts = history_of(connection).reverts
        return reverts[-1] if reverts else None

    def position(self, event: int | None = None) -> Position:
        """Return the position of an event, or of the last event."""
        with self._database.read() as connection:
            if event is None:
                event = connection.scalar(SELECT_LAST_ID)
            return position_at(connection, event)

    def mismatch(self, position: Position) -> str | None:
        """Return why a position does not belong to this ledger, or None if it does.

        Returns:
            "another log" if it belongs to a ledger with another identity, "an older copy of it" if
            this ledger lacks the event or has another one under its id, or None.
        """
        if position.log is None:
            return None
        actual = self.position(position.event)
        if actual.log != position.log:
            return ANOTHER
        if actual != position:
            return "an older copy of it"
        return None

    def view_at(self, cursor: LedgerCursor) -> LedgerView:
        """Return the ledger as seen from a generation with this cursor."""
        return LedgerView(self._database, cursor)

    def latest(self, document_ids: Iterable[str]) -> dict[str, Event]:
        """Return the last event of each document that the ledger knows, by document id."""
        with self._database.read() as connection:
            rows = last_events(connection, document_ids)
            return {row.document_id: Event(**row._mapping) for row in rows}

    def content_hashes(self) -> dict[str, str]:
        """Return the content hash of the last event of every document, by document id.

        The hash of a removal is "".
        """
        last_ids = (
            sa.select(sa.func.max(events.c.id)).where(IS_CHANGE).group_by(events.c.document_id)
        )
        query = sa.select(events.c.document_id, events.c.content_hash).where(
            events.c.id.in_(last_ids)
        )
        with self._database.read() as connection:
            return {row.document_id: row.content_hash for row in connection.execute(query)}

    def document_sources(self) -> dict[str, str]:
        """Return the source that each document last arrived from, by document id.

        Reverts are no sources: a document that a revert restored keeps the source it had.
        """
        is_revert = events.c.source.startswith("revert to ")
        last_ids = (
            sa.select(sa.func.max(events.c.id))
            .where(events.c.kind == EventKind.PUT, sa.not_(is_revert))
            .group_by(events.c.document_id)
        )
        query = sa.select(events.c.document_id, events.c.source).where(events.c.id.in_(last_ids))
        with self._database.read() as connection:
            return {row.document_id: row.source for row in connection.execute(query)}

    def recent_rejections(self, number: int) -> list[Row]:
        """Return the last refused rows, newest first.

        Args:
            number: Largest number of rows to return.

        Returns:
            Rows with row number, document_id, reason, source and time received.
        """
        names = ("row", "document_id", "reason", "source", "received")
        columns = [rejections.c[name] for name in names]
        query = sa.select(*columns).order_by(rejections.c.id.desc()).limit(number)
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def record_drift_report(self, report: Mapping[str, Any], batch: tuple[int, int]) -> int:
        """Record a drift report, and return its id.

        Args:
            report: The report, as values that JSON can hold.
            batch: First and last id of the events that the report is about.
        """
        first, last = batch
        row = {
            "report": dict(report),
            "first_event": first,
            "last_event": last,
            "retriever": self.retriever,
            "recorded": time.time(),
        }
        with self._database.write() as connection:
            added = connection.execute(sa.insert(drift_reports).values(row))
            return added.inserted_primary_key[0]

    def recent_drift_reports(self, number: int) -> list[Row]:
        """Return the last drift reports of the retriever, newest first.

        Args:
            number: Largest number of reports to return.

        Returns:
            Rows with first_event, last_event, report and time recorded.
        """
        query = (
            sa.select(drift_reports)
            .where(drift_reports.c.retriever == self.retriever)
            .order_by(drift_reports.c.recorded.desc(), drift_reports.c.id.desc())
            .limit(number)
        )
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]


def put_row(document: Document) -> Row:
    """Return the event that puts a document, as a row to insert."""
    return {
        "kind": EventKind.PUT,
        "document_id": document.document_id,
        "content_hash": document.content_hash,
        "payload": document.payload,
    }


def removal_row(document_id: str) -> Row:
    """Return the event that removes a document, as a row to insert."""
    return {
        "kind": EventKind.REMOVE,
        "document_id": document_id,
        "content_hash": "",
        "payload": None,
    }


def insert_events(connection: sa.Connection, rows: Sequence[Row]) -> tuple[int, ...]:
    """Append events in the order of `rows`, and return their ids."""
    if not rows:
        return ()
    return tuple(connection.scalars(INSERT_EVENTS, rows))


def _last_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Return kind and content hash of the last put or removal of each document, by document id."""
    contents: dict[str, tuple[str, str]] = {}
    for ids in chunks(sorted(document_ids)):
        for document_id, kind, content_hash in connection.execute(
            SELECT_LAST_CONTENTS, {"ids": ids}
        ):
            contents[document_id] = (kind, content_hash)
    return contents


def _move_feedback(connection: sa.Connection, new_ids: Mapping[str, str]) -> None:
    """Give the feedback on documents to their new ids.

    Args:
        connection: Connection of a writing transaction.
        new_ids: The new id of each document, by old id.
    """
    columns = [feedback.c[name] for name in Feedback.__dataclass_fields__]
    moved: list[Row] = []
    for ids in chunks(sorted(new_ids)):
        is_old = feedback.c.document_id.in_(ids)
        for row in connection.execute(sa.select(*columns).where(is_old)):
            opinion = Feedback(**row._mapping)
            opinion = replace(opinion, document_id=new_ids[opinion.document_id])
            moved.append({**vars(opinion), "hash": opinion.key})
        connection.execute(sa.delete(feedback).where(is_old))
    if moved:
        upsert(connection, feedback, moved, "hash")


def _version_conflict(
    row: Row,
    contents: Mapping[str, tuple[str, str]],
    conditions: Mapping[str, VersionCondition],
) -> Rejection | None:
    """Return why a row may not be recorded because of the version of its document, or None.

    Args:
        row: The row.
        contents: Kind and content hash of the last event of each document.
        conditions: Versions that documents must have.
    """
    document_id = row["document_id"]
    condition = conditions.get(document_id)
    if condition is None:
        return None
    version = condition.base_version
    if document_id in contents:
        kind, content_hash = contents[document_id]
        version = content_hash if kind == EventKind.PUT else None
    if version == condition.version:
        return None

    found = "does not exist" if version is None else f"has version {version[:SHOWN_VERSION]}"
    expected = "it must not exist"
    if condition.version is not None:
        expected = f"version {condition.version[:SHOWN_VERSION]} is expected"
    reason = f"{VERSION_CONFLICT}: the document {found}, but {expected}; read it again"
    return Rejection(condition.row, document_id, reason)


def _unreceived_rows(connection: sa.Connection, batch: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a batch that have not been received before.

    All rows of a new batch are. Of a known batch, only rows are that were refused before or that
    were reverted since: a later change or removal of the other documents must not be undone.
    """
    query = sa.select(batches.c.batch).where(batches.c.batch == batch)
    if connection.scalar(query) is None:
        return list(rows)
    received = _unreverted_contents(connection, [row["document_id"] for row in rows])
    return [row for row in rows if (row["document_id"], row["content_hash"]) not in received]


def _unreverted_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> set[tuple[str, str]]:
    """Return document id and content hash of each put whose last occurrence was not reverted.

    A put that was pending when a revert came is in the ledger twice, and is the same put.
    """
    head = LedgerCursor(Position(event=connection.scalar(SELECT_LAST_ID)))
    last_states: dict[tuple[str, str], EventState] = {}
    for ids in chunks(sorted(document_ids)):
        is_put = events.c.document_id.in_(ids) & (events.c.kind == EventKind.PUT)
        for event in select_events(connection, head, is_put):
            # Compensations of a revert have no state.
            if event.state is not None:
                last_states[event.document_id, event.content_hash] = event.state
    return {content for content, state in last_states.items() if state != EventState.ROLLED_BACK}


def _rejection_hash(rejection: Rejection, source: str) -> str:
    document_id = rejection.document_id or ""
    return hash_text("\0".join((source, str(rejection.row), document_id, rejection.reason)))


def _compensations(connection: sa.Connection, to: int, target: RevertTarget) -> list[Row]:
    """Return the events that restore each document that changed after event `to`, by document id.

    Documents without an earlier event are restored from the generation's files.
    """
    query = sa.select(events.c.document_id).where(events.c.id > to, IS_CHANGE).distinct()
    changed = sorted(connection.scalars(query))
    current = _last_contents(connection, changed)
    logged = _rows_at(connection, changed, to)
    unlogged: set[str] = set()
    for document_id in changed:
        row = logged.get(document_id)
        if row is None or row["kind"] != EventKind.PUT:
            unlogged.add(document_id)
    files = target.contents(unlogged)

    # The ledger says that these documents were removed, but the files still hold them.
    erased = sorted(logged.keys() & files.keys())
    if erased:
        raise FreshetError(
            f"generation {target.generation} still holds {erased[0]}, which was erased; go back to "
            f"another one, or finish it: freshet delete --erase {erased[0]}"
        )

    rows: list[Row] = []
    for document_id in changed:
        if document_id in files:
            row = put_row(files[document_id])
        else:
            row = logged.get(document_id) or removal_row(document_id)
        if current[document_id] != (row["kind"], row["content_hash"]):
            rows.append(row)
    return rows


def _rows_at(connection: sa.Connection, document_ids: Iterable[str], event: int) -> dict[str, Row]:
    """Return the last event up to `event` of each document, as rows to insert."""
    columns = (events.c.kind, events.c.document_id, events.c.content_hash, events.c.payload)
    rows: dict[str, Row] = {}
    for row in last_events(connection, document_ids, *columns, within=[(0, event)]):
        # The content of an erased document is gone, so that it is not restored.
        is_erased = row.kind == EventKind.PUT and row.payload is None
        if is_erased:
            rows[row.document_id] = removal_row(row.document_id)
        else:
            rows[row.document_id] = dict(row._mapping)
    return rows


def _pending_ids(connection: sa.Connection, to: int, current: int) -> list[int]:
    """Return the events that count now, but count neither at `to` nor at `current`.

    No search has found them yet.
    """
    history = history_of(connection)
    searched = [*history.effective(current), *history.effective(to)]
    searched_entries: set[int] = set()
    for entries in repeats_of(connection).values():
        if any(contains(searched, entry) for entry in entries):
            searched_entries.update(entries)

    counting = history.effective(connection.scalar(SELECT_LAST_ID))
    query = (
        sa.select(events.c.id)
        .where(in_intervals(counting), sa.not_(in_intervals(searched)), IS_CHANGE)
        .order_by(events.c.id)
    )
    return [event for event in connection.scalars(query) if event not in searched_entries]


def _append_again(connection: sa.Connection, event_ids: Sequence[int]) -> None:
    """Append events once more; each copy refers to its original in `again`."""
    names = ("kind", "document_id", "content_hash", "payload", "source", "received")
    original = sa.func.coalesce(events.c.again, events.c.id)
    columns = [*(events.c[name] for name in names), original]
    for ids in chunks(list(event_ids)):
        copies = sa.select(*columns).where(events.c.id.in_(ids)).order_by(events.c.id)
        connection.execute(sa.insert(events).from_select([*names, "again"], copies))
