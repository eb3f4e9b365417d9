"""The ledger of a project: the append-only log of changes, feedback and tasks.

A change is recorded here first and made searchable later, so that an interruption loses none. All
retrievers of a project share one ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from model_code.audit import AuditAction, AuditLog
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
    in_intervals,
    last_events,
    position_at,
    read_copies,
    read_history,
    select_events,
)
from model_code.collection.ledger.tasks import TaskTable
from model_code.corpus.corpus_queries import query_hash
from model_code.corpus.rows import Rejection
from model_code.errors import FreshetError
from model_code.files import hash_text
from model_code.text.documents import Document

# First words of a rejection reason: a row expects another version of its document.
VERSION_CONFLICT = "version conflict"
# Number of characters of a version, which is a hash, that a message shows.
SHOWN_VERSION = 12
# Number of documents that are read at a time to erase a query from them. It bounds the memory.
ERASED_BATCH_ROWS = 100

DocumentContents = Mapping[str, Document]
"""Documents that were read from the files of a generation, by document id."""

Row = dict[str, Any]
"""A row of a database table: values by column name."""

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
    """The generation to revert to, and the generation that is current.

    Attributes:
        retriever: Name of the retriever of both generations.
        generation: Number of the generation to revert to.
        cursor: Part of the ledger that the generation to revert to contains.
        current: Number of the current generation.
        current_cursor: Part of the ledger that the current generation contains.
        contents: Function that reads documents by id from the files of the generation to revert
            to. It leaves out documents that this generation does not have.
    """

    retriever: str
    generation: int
    cursor: LedgerCursor
    current: int
    current_cursor: LedgerCursor
    contents: Callable[[Collection[str]], DocumentContents]


@dataclass(frozen=True)
class EventSummary:
    """An event without its content.

    Attributes:
        id: Id of the event.
        kind: One of the values of `EventKind`.
        document_id: Id of the document; empty for a revert.
        source: Origin of the change.
        received: Time of the event, in seconds since 1970.
        is_erased: Whether the event put a document whose content was erased.
    """

    id: int
    kind: str
    document_id: str
    source: str
    received: float
    is_erased: bool


class Ledger:
    """The ledger of a project, which any number of threads and processes may use at once.

    A method that appends events is one transaction: it takes effect completely or not at all. Each
    new event gets a larger id than all events before it. All times are seconds since 1970.

    Events are common to all retrievers of the project. Drift reports belong to one retriever.
    """

    def __init__(
        self, database: Database, retriever: str = "", audit: AuditLog | None = None
    ) -> None:
        """Use an open database as the ledger of a project.

        Args:
            database: Database of the ledger.
            retriever: Name of the retriever whose drift reports are read and written.
            audit: Log that records who changed what. None: it is not recorded.
        """
        self._database = database
        self._audit = audit
        self.retriever = retriever
        self.tasks = TaskTable(database)
        self.close = database.close
        self.is_replaced = database.is_replaced
        self.damage = database.damage

    @classmethod
    def open(cls, url: str, retriever: str = "", audit: AuditLog | None = None) -> Ledger:
        """Open a ledger, or create it.

        Args:
            url: SQLAlchemy URL, such as `sqlite:////srv/ledger.sqlite` (four slashes for an
                absolute path) or `postgresql+psycopg://...`.
            retriever: Name of the retriever whose drift reports are read and written.
            audit: Log that records who changed what. None: it is not recorded.

        Raises:
            FreshetError: If the ledger cannot be opened, or has another format.
        """
        return cls(open_database(url), retriever, audit)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def id(self) -> str:
        """Random identity of this ledger. A copy of the ledger has the same identity."""
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
        """Append an event for each document whose content is new.

        The documents become searchable later, when the events are applied to the index.

        Args:
            documents: Documents to record. If several have the same id, the last one counts.
            source: Origin of the documents, such as "api" or the name of a file.
            rejected: Rows of the same batch that were refused. They are recorded with their
                reasons.
            batch: Name of the batch, such as the hash of a file. If a batch with this name was
                received before, only two kinds of rows are recorded: rows that were refused then,
                and rows that were reverted since.
            conditions: Versions that documents must have, by document id. They are checked in the
                same transaction. A row is rejected if its document has another version, unless the
                document has the new content already.

        Returns:
            The numbers of new, unchanged and rejected rows, with the ids of the new events.
        """
        rows = [_put_row(document) for document in documents]
        receipt = self._append(rows, source, rejected, batch, conditions)
        self._record_action(AuditAction.PUT, len(receipt.events), receipt.events)
        return receipt

    def remove(
        self,
        document_ids: Iterable[str],
        source: str,
        rejected: Sequence[Rejection] = (),
        conditions: Mapping[str, VersionCondition] = {},
    ) -> Receipt:
        """Append a removal for each document that is not removed already.

        The removal of a document without events is recorded as well, because the document may
        belong to the build.

        Args:
            document_ids: Ids of the documents to remove.
            source: Origin of the removals, such as "freshet delete".
            rejected: Rows of the same request that were refused. They are recorded with their
                reasons.
            conditions: Versions that documents must have, by document id; see `receive`.

        Returns:
            The numbers of new, unchanged and rejected rows, with the ids of the new events.
        """
        rows = [_removal_row(document_id) for document_id in document_ids]
        receipt = self._append(rows, source, rejected, None, conditions)
        self._record_action(AuditAction.REMOVE, len(receipt.events), receipt.events)
        return receipt

    def _record_action(
        self, action: AuditAction, count: int, event_ids: Iterable[int] = (), detail: str = ""
    ) -> None:
        """Record in the audit log who made a change that is committed."""
        if self._audit is not None:
            self._audit.append(action, count, event_ids, detail)

    def _append(
        self,
        rows: Sequence[Row],
        source: str,
        rejected: Sequence[Rejection],
        batch: str | None,
        conditions: Mapping[str, VersionCondition],
    ) -> Receipt:
        """Append an event for each row that changes its document, and record refused rows.

        Args:
            rows: Rows of events that put or remove documents.
            source: Origin of the rows.
            rejected: Rows that were refused before this call.
            batch: Name of the batch, or None; see `receive`.
            conditions: Versions that documents must have, by document id.
        """
        received = time.time()
        # If a document occurs several times, only its last row counts.
        last_rows = {row["document_id"]: row for row in rows}
        new_rows = [row for row in rows if row is last_rows[row["document_id"]]]
        with self._database.write() as connection:
            if batch is not None:
                new_rows = _unreceived_rows(connection, batch, new_rows)
                batch_row = {"batch": batch, "source": source, "received": received}
                upsert(connection, batches, [batch_row], "batch")

            contents = _last_contents(connection, last_rows)
            changed_rows: list[Row] = []
            conflicts: list[Rejection] = []
            for row in new_rows:
                content = (row["kind"], row["content_hash"])
                is_unchanged = contents.get(row["document_id"]) == content
                if is_unchanged:
                    continue
                conflict = _version_conflict(row, contents, conditions)
                if conflict is None:
                    changed_rows.append(row)
                else:
                    conflicts.append(conflict)
            event_ids = _insert_events(connection, changed_rows, source, received)
            all_rejected = (*rejected, *conflicts)
            _insert_rejections(connection, all_rejected, source, received)
        return Receipt(
            received=len(rows) + len(rejected),
            unchanged=len(rows) - len(event_ids) - len(conflicts),
            rejected=all_rejected,
            events=event_ids,
        )

    def rename_documents(
        self, documents: Mapping[str, Document], versions: Mapping[str, str], source: str
    ) -> Receipt:
        """Give documents other ids, in one transaction. Their feedback gets the new ids, too.

        Each document is put under its new id, and removed under its old one.

        Args:
            documents: Documents with their new ids, by old id.
            versions: Content hash that the caller has read for each document, by old id.
            source: Origin of the documents, such as "api" or the name of a file.

        Returns:
            The number of documents, with the ids of the new events.

        Raises:
            FreshetError: If a document has another content hash, because it was changed meanwhile.
                Nothing is changed then.
        """
        rows: list[Row] = []
        new_ids: dict[str, str] = {}
        for old_id, document in documents.items():
            rows.append(_put_row(document))
            rows.append(_removal_row(old_id))
            new_ids[old_id] = document.document_id

        with self._database.write() as connection:
            contents = _last_contents(connection, documents)
            for old_id, content in contents.items():
                if content != (EventKind.PUT, versions[old_id]):
                    raise FreshetError(f"{old_id!r} was changed meanwhile; run the command again")
            event_ids = _insert_events(connection, rows, source, time.time())
            _move_feedback(connection, new_ids)
        self._record_action(AuditAction.RENAME, len(documents), event_ids)
        return Receipt(received=len(documents), unchanged=0, rejected=(), events=event_ids)

    def erase(self, document_ids: Collection[str]) -> None:
        """Delete the contents and the feedback of removed documents for good.

        The events of the documents stay, with their ids, times and hashes. An event that put an
        erased document has no content any more. Readers treat it as a removal.

        Args:
            document_ids: Ids of the documents to erase.

        Raises:
            FreshetError: If a document is not removed, or another process reads the ledger.
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
            removal_ids = _last_event_ids(connection, document_ids)
        self._record_action(AuditAction.ERASE, len(document_ids), removal_ids)
        # Deleted contents stay in the file of the database until it is rewritten.
        self._database.vacuum()

    def record_solves(
        self, queries: Mapping[str, Collection[str]], source: str, retriever: str
    ) -> None:
        """Append an event for each document whose vector must be solved again by IncDSI.

        IncDSI solves a vector so that given queries find the document. The events name the queries
        by hashes. So the ledger has no further copies of query texts that a person may ask to
        forget.

        Retrievers differ in the queries that a document is solved for, because their builds have
        other limits and other queries that judge. So an event belongs to one retriever.

        Args:
            queries: Hashes of the queries to solve for, by document id; see `query_hash`.
            source: Reason for solving the vectors again.
            retriever: Name of the retriever whose vectors are solved again.
        """
        rows: list[Row] = []
        for document_id, hashes in sorted(queries.items()):
            row = {
                "kind": EventKind.SOLVE,
                "document_id": document_id,
                "content_hash": "",
                "payload": {"queries": sorted(hashes), "retriever": retriever},
            }
            rows.append(row)
        with self._database.write() as connection:
            event_ids = _insert_events(connection, rows, source, time.time())
        self._record_action(AuditAction.SOLVE, len(event_ids), event_ids)

    def record_feedback(self, verdict: Feedback, now: float | None = None) -> str:
        """Record an opinion about a hit, and return the opinion that counts.

        Only one opinion of a person counts for a query and a document. It is the latest one, with
        two exceptions. A click does not replace a thumb. A thumb up on a hit that known queries
        raised adds nothing, so it does not replace an earlier thumb up, which may count.

        Args:
            verdict: Opinion to record.
            now: Time of the opinion, in seconds since 1970. None means the current time.

        Returns:
            The recorded verdict after this call: one of the values of `Opinion`.
        """
        received = time.time() if now is None else now
        row = _feedback_row(replace(verdict, received=received))
        is_thumb = sa.literal(verdict.verdict) != Opinion.CLICK
        replaces_click = feedback.c.verdict == Opinion.CLICK
        may_replace = sa.or_(is_thumb, replaces_click)
        if verdict.raised and verdict.verdict == Opinion.UP:
            may_replace = feedback.c.verdict != Opinion.UP
        with self._database.write() as connection:
            upsert(connection, feedback, [row], "hash", where=may_replace)
            query = sa.select(feedback.c.verdict).where(feedback.c.hash == verdict.key)
            recorded = connection.scalar(query)
        self._record_action(AuditAction.FEEDBACK, 1, detail=str(verdict.verdict))
        return recorded

    def withdraw_feedback(self, who: str, query: str, document_id: str) -> bool:
        """Delete the opinion of a person about a hit, and return whether there was one."""
        # The key of an opinion does not depend on the verdict, so any verdict finds it.
        key = Feedback(query, document_id, Opinion.UP, who=who).key
        with self._database.write() as connection:
            deleted = connection.execute(sa.delete(feedback).where(feedback.c.hash == key))
        self._record_action(AuditAction.WITHDRAW, deleted.rowcount)
        return deleted.rowcount > 0

    def feedback(self) -> list[Feedback]:
        """Return all opinions, oldest first. Replaced opinions are not among them."""
        return self._read_feedback(sa.true())

    def thumbs(self) -> list[Feedback]:
        """Return all opinions that are thumbs up or down, oldest first.

        Clicks are left out by the database. A service can record many more clicks than thumbs.
        """
        return self._read_feedback(feedback.c.verdict != Opinion.CLICK)

    def _read_feedback(self, condition: sa.ColumnElement[bool]) -> list[Feedback]:
        """Return the opinions that match a condition, oldest first."""
        columns = [feedback.c[name] for name in Feedback.__dataclass_fields__]
        query = sa.select(*columns).where(condition)
        query = query.order_by(feedback.c.received, feedback.c.hash)
        with self._database.read() as connection:
            return [Feedback(**row._mapping) for row in connection.execute(query)]

    def forget_query(self, text: str, now: float | None = None) -> int:
        """Delete the feedback on a query, and record that it must be forgotten.

        From then on, the query is a known query of no document.

        Args:
            text: Text of the query. Only the hash of its normalised text is recorded.
            now: Time of the request, in seconds since 1970. None means the current time.

        Returns:
            The number of deleted opinions.
        """
        received = time.time() if now is None else now
        forgotten = query_hash(text)
        with self._database.write() as connection:
            # Every text is normalised and compared here, because SQL cannot compute the hash.
            opinion_keys: list[str] = []
            opinions = sa.select(feedback.c.hash, feedback.c.query)
            for opinion_key, query in connection.execute(opinions):
                if query_hash(query) == forgotten:
                    opinion_keys.append(opinion_key)
            for keys in chunks(opinion_keys):
                connection.execute(sa.delete(feedback).where(feedback.c.hash.in_(keys)))
            _insert_forgotten(connection, forgotten, received)
        self._record_action(AuditAction.FORGET, 1)
        # Deleted texts stay in the file of the database until it is rewritten.
        self._database.vacuum()
        return len(opinion_keys)

    def record_forgotten(self, forgotten: str, received: float) -> None:
        """Record the hash of a query to forget, and the time of the request."""
        with self._database.write() as connection:
            _insert_forgotten(connection, forgotten, received)
        self._record_action(AuditAction.FORGET, 1)

    def erase_query(self, text: str) -> None:
        """Delete a query from the documents in all events.

        A document may have arrived with this query in its row.

        Args:
            text: Text of the query. Texts with the same normalised form are deleted, too.
        """
        forgotten = query_hash(text)
        has_content = (events.c.kind == EventKind.PUT) & events.c.payload.is_not(None)
        puts = sa.select(events.c.id, events.c.document_id, events.c.payload).where(has_content)
        # The contents are read batch by batch, so that a large ledger does not fill the memory.
        streamed_puts = puts.execution_options(yield_per=ERASED_BATCH_ROWS)
        # New values of the events that have the query, by event id.
        changed: dict[int, Row] = {}
        with self._database.write() as connection:
            for event_id, document_id, payload in connection.execute(streamed_puts):
                kept = [query for query in payload["queries"] if query_hash(query) != forgotten]
                if len(kept) == len(payload["queries"]):
                    continue

                payload["queries"] = kept
                # The content hash covers the queries, so it changes as well.
                document = Document.from_payload(document_id, payload)
                changed[event_id] = {"payload": payload, "content_hash": document.content_hash}
            for event_id, values in changed.items():
                is_event = events.c.id == event_id
                connection.execute(sa.update(events).where(is_event).values(values))
        # Deleted texts stay in the file of the database until it is rewritten.
        self._database.vacuum()

    def forgotten_queries(self) -> frozenset[str]:
        """Return the hashes of all queries that were forgotten; see `forget_query`."""
        return frozenset(self.forgotten_times())

    def forgotten_times(self) -> dict[str, float]:
        """Return the time when each query was forgotten, in seconds since 1970, by its hash."""
        query = sa.select(forgotten_queries).order_by(forgotten_queries.c.hash)
        with self._database.read() as connection:
            return {row.hash: row.received for row in connection.execute(query)}

    def revert(self, target: RevertTarget) -> int:
        """Take all documents back to their state in an earlier generation.

        One transaction appends, in this order:

        1. A compensation for each document that changed since then. This event puts the earlier
           content, or removes the document.
        2. The event of the revert, which ends this block.
        3. A copy of each pending event. Pending events are not searchable yet, so the revert must
           not undo them.

        Args:
            target: Generation to revert to, and the current generation.

        Returns:
            Id of the event of the revert.

        Raises:
            FreshetError: If the files of the generation still hold a document that was erased.
        """
        # If the generation comes from another ledger, it is unknown which events it contains. Then
        # all documents with events are restored from its files. The check needs no transaction,
        # because events never change.
        cursor = target.cursor
        is_known = not cursor.replay and self.mismatch(cursor.position) is None
        to = cursor.position.event if is_known else 0

        source = f"revert to {target.retriever} generation {target.generation}"
        received = time.time()
        with self._database.write() as connection:
            pending_ids = _pending_ids(connection, to, target.current_cursor.position.event)
            compensations = _compensations(connection, to, target)
            compensation_ids = _insert_events(connection, compensations, source, received)
            first_compensation = None
            if compensation_ids:
                first_compensation = compensation_ids[0]
            revert_row = {
                "kind": EventKind.REVERT,
                "document_id": "",
                "content_hash": "",
                "payload": {
                    "to": to,
                    "files": not is_known,
                    "first": first_compensation,
                    "retriever": target.retriever,
                    "generation": target.generation,
                    "current": target.current,
                },
            }
            (revert_id,) = _insert_events(connection, [revert_row], source, received)
            _append_again(connection, pending_ids)
            last_id = connection.scalar(SELECT_LAST_ID)

        first_id = revert_id if first_compensation is None else first_compensation
        appended_ids = range(first_id, last_id + 1)
        self._record_action(AuditAction.REVERT, len(compensation_ids), appended_ids)
        return revert_id

    def event_summaries(self) -> list[EventSummary]:
        """Return all events without their contents, oldest first."""
        # An event that put a document has no content if the document was erased later.
        is_erased = (events.c.kind == EventKind.PUT) & events.c.payload.is_(sa.null())
        query = sa.select(
            events.c.id,
            events.c.kind,
            events.c.document_id,
            events.c.source,
            events.c.received,
            is_erased.label("is_erased"),
        ).order_by(events.c.id)
        with self._database.read() as connection:
            return [EventSummary(**row._mapping) for row in connection.execute(query)]

    def last_revert(self) -> Revert | None:
        """Return the last revert, or None if there was none."""
        with self._database.read() as connection:
            reverts = read_history(connection).reverts
        return reverts[-1] if reverts else None

    def position(self, event: int | None = None) -> Position:
        """Return the ledger position of an event. None means the last event."""
        with self._database.read() as connection:
            if event is None:
                event = connection.scalar(SELECT_LAST_ID)
            return position_at(connection, event)

    def mismatch(self, position: Position) -> str | None:
        """Check that a position belongs to this ledger.

        A position is an event id with the identity of its ledger and a hash of the event. So it
        detects another ledger, and an older copy of the right one, such as from a backup.

        Returns:
            None if the position belongs to this ledger. "another log" if it belongs to a ledger
            with another identity. "an older copy of it" if this ledger does not have the event, or
            has another event with the same id.
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
        """Return the ledger as seen from a generation: which of its events the generation contains.

        The cursor of the generation names the part of the ledger that it contains.
        """
        return LedgerView(self._database, cursor)

    def latest(self, document_ids: Iterable[str]) -> dict[str, Event]:
        """Return the last put or removal of each document, by document id.

        Documents without events are left out.
        """
        with self._database.read() as connection:
            rows = last_events(connection, document_ids)
            return {row.document_id: Event(**row._mapping) for row in rows}

    def content_hashes(self) -> dict[str, str]:
        """Return the content hash of each document after its last event, by document id.

        The hash of a removed document is "". Documents without events are left out.
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
        """Return the source of the last put of each document, by document id.

        Reverts do not count as sources. A document that a revert restored keeps its earlier source.
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
            Rows with the columns row, document_id, reason, source and received.
        """
        names = ("row", "document_id", "reason", "source", "received")
        columns = [rejections.c[name] for name in names]
        query = sa.select(*columns).order_by(rejections.c.id.desc()).limit(number)
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def record_drift_report(self, report: Mapping[str, Any], batch: tuple[int, int]) -> int:
        """Record a drift report, which compares new documents with old ones, and return its id.

        Args:
            report: Drift report, as values that JSON can hold.
            batch: Ids of the first and the last event that the report is about.
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

        A drift report compares new documents with old ones.

        Args:
            number: Largest number of reports to return.

        Returns:
            Rows with the columns of the table, such as first_event, last_event, report and
            recorded.
        """
        query = (
            sa.select(drift_reports)
            .where(drift_reports.c.retriever == self.retriever)
            .order_by(drift_reports.c.recorded.desc(), drift_reports.c.id.desc())
            .limit(number)
        )
        with self._database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]


def _insert_forgotten(connection: sa.Connection, forgotten: str, received: float) -> None:
    """Record the hash of a query to forget, and the time of the request."""
    row = {"hash": forgotten, "received": received}
    upsert(connection, forgotten_queries, [row], "hash")


def _feedback_row(opinion: Feedback) -> Row:
    """Return an opinion as a row of the table of feedback."""
    row: Row = dict(vars(opinion))
    row["hash"] = opinion.key
    return row


def _insert_rejections(
    connection: sa.Connection, rejected: Sequence[Rejection], source: str, received: float
) -> None:
    """Record refused rows, each only once if it is refused again for the same reason."""
    if not rejected:
        return
    rows: list[Row] = []
    for rejection in rejected:
        row: Row = dict(vars(rejection))
        row["hash"] = _rejection_hash(rejection, source)
        row["source"] = source
        row["received"] = received
        rows.append(row)
    upsert(connection, rejections, rows, "hash")


def _put_row(document: Document) -> Row:
    """Return the row of an event that puts a document."""
    return {
        "kind": EventKind.PUT,
        "document_id": document.document_id,
        "content_hash": document.content_hash,
        "payload": document.payload,
    }


def _removal_row(document_id: str) -> Row:
    """Return the row of an event that removes a document."""
    return {
        "kind": EventKind.REMOVE,
        "document_id": document_id,
        "content_hash": "",
        "payload": None,
    }


def _insert_events(
    connection: sa.Connection, rows: Sequence[Row], source: str, received: float
) -> tuple[int, ...]:
    """Append events, and return their ids.

    Args:
        connection: Connection of a writing transaction.
        rows: Rows of the events, in order: kind, document id, content hash and payload.
        source: Origin of the events.
        received: Time of the events, in seconds since 1970.
    """
    if not rows:
        return ()
    complete_rows: list[Row] = []
    for row in rows:
        complete_row = dict(row)
        complete_row["source"] = source
        complete_row["received"] = received
        complete_rows.append(complete_row)
    return tuple(connection.scalars(INSERT_EVENTS, complete_rows))


def _last_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Return kind and content hash of the last put or removal of each document, by document id."""
    contents: dict[str, tuple[str, str]] = {}
    for ids in chunks(sorted(document_ids)):
        rows = connection.execute(SELECT_LAST_CONTENTS, {"ids": ids})
        for document_id, kind, content_hash in rows:
            contents[document_id] = (kind, content_hash)
    return contents


def _last_event_ids(connection: sa.Connection, document_ids: Iterable[str]) -> list[int]:
    """Return the id of the last event of each document that has events."""
    last_ids: list[int] = []
    for ids in chunks(sorted(document_ids)):
        query = (
            sa.select(sa.func.max(events.c.id))
            .where(events.c.document_id.in_(ids), IS_CHANGE)
            .group_by(events.c.document_id)
        )
        last_ids.extend(connection.scalars(query))
    return last_ids


def _move_feedback(connection: sa.Connection, new_ids: Mapping[str, str]) -> None:
    """Change the document ids of feedback after documents were renamed.

    Args:
        connection: Connection of a writing transaction.
        new_ids: New id of each document, by old id.
    """
    columns = [feedback.c[name] for name in Feedback.__dataclass_fields__]
    moved: list[Row] = []
    for ids in chunks(sorted(new_ids)):
        is_old = feedback.c.document_id.in_(ids)
        for row in connection.execute(sa.select(*columns).where(is_old)):
            opinion = Feedback(**row._mapping)
            opinion = replace(opinion, document_id=new_ids[opinion.document_id])
            moved.append(_feedback_row(opinion))
        connection.execute(sa.delete(feedback).where(is_old))
    if moved:
        upsert(connection, feedback, moved, "hash")


def _version_conflict(
    row: Row,
    contents: Mapping[str, tuple[str, str]],
    conditions: Mapping[str, VersionCondition],
) -> Rejection | None:
    """Return a rejection if the document of a row has another version than expected, else None.

    Args:
        row: Row of the event to insert.
        contents: Kind and content hash of the last event of each document, by document id.
        conditions: Versions that documents must have, by document id.
    """
    document_id = row["document_id"]
    condition = conditions.get(document_id)
    if condition is None:
        return None

    # A document without events still has the version that the files of the generation hold.
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
    """Return the rows of a batch that have to be recorded.

    If the batch is new, these are all rows. If a batch with this name was received before, these
    are the rows that were refused then, and the rows that a revert undid. The other rows were
    recorded. Recording them again would undo later changes of their documents.
    """
    query = sa.select(batches.c.batch).where(batches.c.batch == batch)
    if connection.scalar(query) is None:
        return list(rows)
    received = _unreverted_contents(connection, [row["document_id"] for row in rows])
    return [row for row in rows if (row["document_id"], row["content_hash"]) not in received]


def _unreverted_contents(
    connection: sa.Connection, document_ids: Iterable[str]
) -> set[tuple[str, str]]:
    """Return the contents that were put and not reverted, as pairs of document id and hash.

    A revert takes all documents back to an earlier state, so that later events have no effect. If
    the same content was put several times, the last put decides.
    """
    # Seen from the end of the ledger, no event is pending: each was either reverted or not.
    end = LedgerCursor(Position(event=connection.scalar(SELECT_LAST_ID)))
    last_states: dict[tuple[str, str], EventState] = {}
    for ids in chunks(sorted(document_ids)):
        is_put = events.c.document_id.in_(ids) & (events.c.kind == EventKind.PUT)
        for event in select_events(connection, end, is_put):
            # Events that a revert appended have no state. They are skipped.
            if event.state is not None:
                last_states[event.document_id, event.content_hash] = event.state
    return {content for content, state in last_states.items() if state != EventState.ROLLED_BACK}


def _rejection_hash(rejection: Rejection, source: str) -> str:
    """Return the identity of a refused row, by which repeated rejections are recognised."""
    document_id = rejection.document_id or ""
    return hash_text("\0".join((source, str(rejection.row), document_id, rejection.reason)))


def _compensations(connection: sa.Connection, to: int, target: RevertTarget) -> list[Row]:
    """Return rows of events that take all documents back to their state after event `to`.

    A revert to an earlier generation, a snapshot of the index, appends these events. A document is
    restored from its last event up to `to`. A document without such an event is restored from the
    files of the generation, or removed if the files do not have it either.

    Args:
        connection: Connection of a writing transaction.
        to: Id of the last event that the generation contains.
        target: Generation to revert to.

    Returns:
        At most one row per document, by ascending document id.
    """
    query = sa.select(events.c.document_id).where(events.c.id > to, IS_CHANGE).distinct()
    changed_ids = sorted(connection.scalars(query))
    current_contents = _last_contents(connection, changed_ids)
    ledger_rows = _rows_at(connection, changed_ids, to)
    # The ledger has no earlier content of these documents.
    ids_without_content: set[str] = set()
    for document_id in changed_ids:
        row = ledger_rows.get(document_id)
        if row is None or row["kind"] != EventKind.PUT:
            ids_without_content.add(document_id)
    file_contents = target.contents(ids_without_content)

    # According to the ledger, these documents are removed in the generation. But its files still
    # hold them, so they were erased later.
    erased = sorted(ledger_rows.keys() & file_contents.keys())
    if erased:
        raise FreshetError(
            f"generation {target.generation} still holds {erased[0]}, which was erased; go back to "
            f"another one, or finish it: freshet delete --erase {erased[0]}"
        )

    rows: list[Row] = []
    for document_id in changed_ids:
        if document_id in file_contents:
            row = _put_row(file_contents[document_id])
        elif document_id in ledger_rows:
            row = ledger_rows[document_id]
        else:
            row = _removal_row(document_id)
        earlier_content = (row["kind"], row["content_hash"])
        if current_contents[document_id] != earlier_content:
            rows.append(row)
    return rows


def _rows_at(connection: sa.Connection, document_ids: Iterable[str], event: int) -> dict[str, Row]:
    """Return the last event of each document up to `event`, as rows to insert, by document id.

    A revert inserts them again, to take the documents back to their state then.
    """
    columns = (events.c.kind, events.c.document_id, events.c.content_hash, events.c.payload)
    rows: dict[str, Row] = {}
    for row in last_events(connection, document_ids, *columns, within=[(0, event)]):
        # An erased document has no content in the ledger, so it cannot be restored.
        is_erased = row.kind == EventKind.PUT and row.payload is None
        if is_erased:
            rows[row.document_id] = _removal_row(row.document_id)
        else:
            rows[row.document_id] = dict(row._mapping)
    return rows


def _pending_ids(connection: sa.Connection, to: int, current: int) -> list[int]:
    """Return the ids of the pending events, which no search has found yet.

    A revert must not undo them. An event is effective at a position if it lies before the position
    and was not reverted. A pending event is effective at the end of the ledger, but in neither of
    the two generations.

    Args:
        connection: Connection of a transaction.
        to: Last event of the generation to revert to.
        current: Last event of the current generation.
    """
    history = read_history(connection)
    searched = [*history.effective(current), *history.effective(to)]
    # An earlier revert copied events that were pending then. Once a search found the event or a
    # copy of it, none of them is pending.
    searched_copies: set[int] = set()
    for ids in read_copies(connection).values():
        if any(contains(searched, event) for event in ids):
            searched_copies.update(ids)

    effective_at_end = history.effective(connection.scalar(SELECT_LAST_ID))
    query = (
        sa.select(events.c.id)
        .where(in_intervals(effective_at_end), sa.not_(in_intervals(searched)), IS_CHANGE)
        .order_by(events.c.id)
    )
    return [event for event in connection.scalars(query) if event not in searched_copies]


def _append_again(connection: sa.Connection, event_ids: Sequence[int]) -> None:
    """Append copies of events. The column `again` of a copy has the id of its original.

    The copy of a copy has the id of the first event, which is no copy.
    """
    names = ("kind", "document_id", "content_hash", "payload", "source", "received")
    original = sa.func.coalesce(events.c.again, events.c.id)
    columns = [*(events.c[name] for name in names), original]
    for ids in chunks(list(event_ids)):
        copies = sa.select(*columns).where(events.c.id.in_(ids)).order_by(events.c.id)
        connection.execute(sa.insert(events).from_select([*names, "again"], copies))
