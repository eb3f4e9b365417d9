"""The live index: record changes of documents in the ledger, and apply them to a retriever.

The ledger is an append-only log of events. Applying events builds a new generation, a snapshot of
the index. Searches find the changes as soon as it is the current generation.

The manifest of a generation has its ledger cursor, which tells the events that it contains. This is
stored nowhere else. All later events are pending. So each event is applied exactly once, also if a
process is interrupted at any point.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Protocol

from model_code.collection.generations.generation import (
    Generation,
    document_hashes,
    document_rows,
    may_expire,
)
from model_code.collection.generations.generation_builder import (
    ApplyResult,
    GenerationBuilder,
    LoadedSegments,
)
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.generations.refinements import solved_documents
from model_code.collection.generations.verification import verify_searchable
from model_code.collection.index.builder_factory import make_generation_builder
from model_code.collection.index.conditional import (
    document_fields,
    has_conditions,
    join_receipts,
    merge_rows,
    possible_id,
    take_conditions,
)
from model_code.collection.index.pending_changes import apply_pending, change_of
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    open_ledger,
    open_ledger_if_exists,
    read_contents,
    refuse_missing_ledger,
    require_matching_ledger,
)
from model_code.collection.ledger.events import (
    EventKind,
    LedgerCursor,
    Receipt,
    VersionCondition,
)
from model_code.collection.ledger.ledger import Ledger, RevertTarget
from model_code.collection.ledger.states import Event, LedgerView, Pending
from model_code.collection.segments.conditions import (
    Filters,
    matches_everything,
    matches_fields,
    parse_filters,
)
from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.field_index import FieldIndex
from model_code.corpus.clean_rows import CleanRows, RawRow, clean_rows, locate_rows
from model_code.corpus.cleaning import is_possible_id
from model_code.corpus.corpus_queries import query_hash
from model_code.corpus.rows import RefusedRow, Rejection, Row, printable
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.project import Project, file_lock
from model_code.settings import require
from model_code.text.documents import STATUSES, Change, Document, status_of

# Name of the folder that damaged generations are moved to, and suffix of a damaged ledger file.
DAMAGED = "damaged"

# Reason for refusing a row whose id belongs to no document.
UNKNOWN_DOCUMENT = "no such document is searchable or waiting"

# Source in the ledger of the removals of expired documents.
EXPIRY_SOURCE = "expired"

# Sources in the ledger of the events that solve vectors again: because of feedback, because a query
# was forgotten, or because a document with known queries was erased.
FEEDBACK_SOURCE = "feedback"
FORGOTTEN_SOURCE = "forgotten"
ERASED_SOURCE = "erased"

# Number of times that a partial change is tried. An attempt fails if another writer changes the
# document between reading and writing.
MAX_PARTIAL_ATTEMPTS = 10


class ApplyingService(Protocol):
    """A running service. It applies recorded changes fast, because it has the encoder in memory."""

    def apply(self) -> Any:
        """Apply all pending changes.

        Returns:
            A result whose attribute `generation` is the number of the first generation that
            contains the changes.
        """


NoteRecorded = Callable[[Sequence[Document]], None]
"""Function that is told which documents were recorded."""

FindService = Callable[[Project], ApplyingService | None]
"""Function that returns the running service of a project, or None."""


def note_nothing(documents: Sequence[Document]) -> None:
    """Ignore documents that were just recorded, because nothing encodes them ahead."""


def find_no_service(project: Project) -> ApplyingService | None:
    """Return None: no service is looked for, so that this process applies the changes itself."""
    return None


class LiveIndex:
    """Records changes of documents, and applies them to one retriever.

    Any number of processes may record changes at once. A lock lets only one process apply them.

    Attributes:
        project: The project.
        retriever: Name of the retriever.
        store: Generations of the retriever.
        loaded: Function that returns segments which are open already, by number, to share them.
        find_service: Function that finds the running service, which applies recorded changes.
        note_recorded: Function that is called with documents which were recorded as new.
    """

    def __init__(
        self,
        project: Project,
        retriever: str | None = None,
        loaded: LoadedSegments = dict,
        find_service: FindService = find_no_service,
        note_recorded: NoteRecorded = note_nothing,
    ) -> None:
        """Use the live collection of a retriever.

        Args:
            project: The project.
            retriever: Name of the retriever. None means the default retriever.
            loaded: Function that returns segments which are open already, by number.
            find_service: Function that finds the running service of the project.
            note_recorded: Function that is called with documents which were recorded as new.

        Raises:
            FreshetError: If the retriever is not live.
        """
        self.project = project
        self.retriever = retriever or default_retriever(project.live)
        self.loaded = loaded
        self.find_service = find_service
        self.note_recorded = note_recorded
        self.store = GenerationStore(project.live, self.retriever)
        self._ledger: Ledger | None = None

        # The current generation is read to check that the retriever is live.
        self.store.current()

    @property
    def ledger_if_exists(self) -> Ledger | None:
        """The project's ledger. None if there is none, because no document ever arrived.

        The ledger is the log of changes. It is opened again if its file was replaced.

        Raises:
            FreshetError: If the current generation was made from a ledger, but there is none.
        """
        if self._ledger is None or self._ledger.is_replaced():
            self._ledger = open_ledger_if_exists(self.project, self.retriever)
            # A project that follows a published collection has no ledger, and needs none.
            if self._ledger is None and not self.project.is_follower:
                refuse_missing_ledger(self.generation)
        return self._ledger

    @property
    def ledger(self) -> Ledger:
        """The project's ledger. It is created if there is none.

        Raises:
            FreshetError: If the current generation was made from a ledger, but there is none.
        """
        ledger = self.ledger_if_exists
        if ledger is None:
            ledger = open_ledger(self.project, self.retriever)
            self._ledger = ledger
        return ledger

    @property
    def ledger_view(self) -> LedgerView:
        """View of the ledger that tells which events the current generation contains."""
        return self.ledger.view_at(self.generation.cursor)

    @property
    def generation(self) -> Generation:
        """The current generation, read from the disk."""
        return self.store.current()

    @property
    def settings(self) -> CorpusSettings:
        """Settings by which rows are read and cleaned, read from the project now."""
        return self.project.settings("corpus", CorpusSettings)

    @cached_property
    def builder(self) -> GenerationBuilder:
        """Builder of new generations. It keeps the encoder and the index in memory."""
        project = self.project
        retriever = self.retriever
        # The builder must not keep this object alive. In a cycle of references, both would be freed
        # late, and the folders of an old generation would count as open until then.
        reference = weakref.ref(self)

        def find_ledger() -> Ledger | None:
            """Return the ledger that the live index has open, as long as the index exists."""
            index = reference()
            if index is None:
                return open_ledger_if_exists(project, retriever)
            return index.ledger_if_exists

        builder = make_generation_builder(project, retriever, find_ledger)
        builder.loaded = self.loaded
        return builder

    def encode_ahead(self, documents: Sequence[Document]) -> None:
        """Encode recorded documents, so that the next `apply` is faster.

        Another thread may apply other changes meanwhile.
        """
        self.builder.encode_ahead(documents)

    def warm(self) -> None:
        """Load the encoder and the index, so that the first change is fast."""
        self.builder.prepare()

    def release(self) -> None:
        """Close the index that changes are applied to. The next change opens it again.

        Call this if another process applies the changes. Folders that this object has open could
        not be deleted after they are out of date.
        """
        self.__dict__.pop("builder", None)

    def receive(
        self,
        rows: Iterable[RawRow] | CleanRows,
        source: str,
        batch: str | None = None,
        only_known: bool = False,
    ) -> Receipt:
        """Record documents to add or update. `apply` makes them searchable.

        Args:
            rows: Rows of a file (see `read_file`), mappings with the keys id, title, text, fields
                and queries, or rows that `clean_rows` has cleaned.
            source: Origin of the rows, such as "api" or the name of a file.
            batch: Name of the batch, such as the hash of a file. A batch is recorded only once; see
                `Ledger.receive`.
            only_known: Whether to refuse documents that do not exist yet.

        Returns:
            The counts of new events, unchanged documents and refused rows.

        Raises:
            FreshetError: If the current generation was made from another ledger.
        """
        cleaned = self.clean_rows(rows, source, only_known)
        if has_conditions(cleaned):
            # The rows are compared with what readers see, and an expired document does not exist
            # for them.
            self.remove_expired()
        conditional = take_conditions(cleaned, self.base_versions)
        return self.record(
            conditional.documents, source, conditional.rejected, batch, conditional.conditions
        )

    def base_versions(self, document_ids: Collection[str]) -> dict[str, str]:
        """Return the versions of live documents in the current generation, by document id."""
        rows = document_rows(self.generation, document_ids, ("content_hash",))
        return {document_id: row["content_hash"] for document_id, row in rows.items()}

    def present_documents(self, document_ids: Collection[str]) -> dict[str, Document]:
        """Return documents with all recorded changes, whether they are searchable or not.

        Documents that do not exist are left out.
        """
        documents: dict[str, Document] = {}
        remaining = set(document_ids)
        ledger = self.ledger_if_exists
        if ledger is not None:
            for document_id, event in ledger.latest(remaining).items():
                remaining.discard(document_id)
                if event.kind == EventKind.PUT and event.document is not None:
                    documents[document_id] = event.document
        for document_id, row in document_rows(self.generation, remaining).items():
            documents[document_id] = document_from_row(row)
        return documents

    def receive_partial(self, rows: Iterable[RawRow], source: str) -> Receipt:
        """Record changes of single values of documents. All other values stay.

        A value of a row replaces the value of its document. Fields are replaced one by one, and
        null removes a field. If another writer changes a document at the same time, the row is
        applied again to the changed document, so that no change is lost.

        Args:
            rows: Rows with an id and the values to change.
            source: Origin of the rows, such as "api" or the name of a file.

        Raises:
            FreshetError: If other writers changed a document in each of `MAX_PARTIAL_ATTEMPTS`
                attempts.
        """
        remaining = list(locate_rows(rows, self.settings.columns, source))
        receipts: list[Receipt] = []
        for _ in range(MAX_PARTIAL_ATTEMPTS):
            receipt, remaining = self._record_partial(remaining, source)
            receipts.append(receipt)
            if not remaining:
                return join_receipts(receipts)
        raise FreshetError(
            f"{len(remaining)} documents were changed by others {MAX_PARTIAL_ATTEMPTS} times while "
            "they were updated; try again"
        )

    def _record_partial(
        self, rows: Sequence[Row | RefusedRow], source: str
    ) -> tuple[Receipt, list[Row | RefusedRow]]:
        """Complete partial rows with the present values of their documents, and record them.

        Args:
            rows: Rows with an id and the values to change.
            source: Origin of the rows.

        Returns:
            The receipt, and the rows whose documents another writer changed meanwhile. They are not
            part of the receipt, and have to be tried again.
        """
        ids = [possible_id(row) for row in rows]
        present = self.present_documents({row_id for row_id in ids if row_id is not None})
        complete_rows = merge_rows(rows, ids, present, self.settings.max_characters)
        cleaned = self.clean_rows(complete_rows, source)
        restricted = cleaned.restricted_to(set(present), UNKNOWN_DOCUMENT)
        versions = {name: document.content_hash for name, document in present.items()}
        conditional = take_conditions(restricted, self.base_versions, versions)
        receipt = self.record(conditional.documents, source, (), None, conditional.conditions)

        # A row is rejected if its document has another version by now. The rejection is final only
        # if the row itself names the version. Otherwise the row is tried again.
        rejected = list(conditional.rejected)
        conflicting_ids: set[str | None] = set()
        for rejection in receipt.rejected:
            if rejection.document_id in conditional.explicit:
                rejected.append(rejection)
            else:
                conflicting_ids.add(rejection.document_id)
        accepted = receipt.received - len(receipt.rejected)
        received = accepted + len(rejected)

        conflicting_rows: list[Row | RefusedRow] = []
        for row, row_id in zip(rows, ids, strict=True):
            if row_id in conflicting_ids:
                conflicting_rows.append(row)
        final_receipt = Receipt(received, receipt.unchanged, tuple(rejected), receipt.events)
        return final_receipt, conflicting_rows

    def matching_versions(self, filters: Filters) -> dict[str, str]:
        """Return the versions of the documents that match filters, by document id.

        Documents are matched with all recorded changes, whether they are searchable or not.

        Raises:
            SettingsError: If the filters are empty or malformed.
            FreshetError: If the filters name a field that no document ever had.
        """
        condition = parse_filters(filters)
        require(
            not matches_everything(condition),
            "the filter is empty, so that it matches every document; name one",
        )
        # The hashes are read before the pending events. If another writer changes a document in
        # between, its hash is outdated, so that a removal by this version is refused.
        hashes = self.content_hashes()
        pending_changes: Sequence[Event] = ()
        if self.ledger_if_exists is not None:
            pending_changes = self.ledger_view.pending().changes
        pending_fields: dict[str, Mapping[str, Any]] = {}
        for event in pending_changes:
            if event.document is not None:
                pending_fields[event.document_id] = document_fields(event.document)

        # The searcher compares the indexed contents. Documents with a pending event have newer
        # contents, which are compared below.
        waiting = FieldIndex.build(pending_fields.values()) if pending_fields else None
        matching = set(self.builder.searcher.matching(filters, waiting))
        matching.difference_update(event.document_id for event in pending_changes)
        for document_id, fields in pending_fields.items():
            if matches_fields(condition, fields):
                matching.add(document_id)

        versions: dict[str, str] = {}
        for document_id in sorted(matching):
            if document_id in hashes:
                versions[document_id] = hashes[document_id]
        return versions

    def remove_matching(self, filters: Filters, source: str) -> tuple[list[str], Receipt]:
        """Record removals of the documents that match filters; see `matching_versions`.

        If another writer changes a document at the same time, its removal is refused, because it
        may not match any more.

        Args:
            filters: The filters.
            source: Origin of the removal, such as "freshet delete".

        Returns:
            The ids of the matching documents, and the receipt.
        """
        versions = self.matching_versions(filters)
        return list(versions), self.remove(versions, source, versions)

    def remove_expired(self) -> Receipt | None:
        """Record removals of the documents whose field `expires` is a past date.

        Only documents of the current generation are checked. A document with a recorded change that
        is not searchable yet is left alone, because the change may have set a later date.

        Returns:
            The receipt, or None if no document is expired.
        """
        # Most collections have no such field. Then nothing has to be loaded.
        if not may_expire(self.generation):
            return None
        expired = self.builder.searcher.expired_documents()
        if not expired:
            return None

        # The searcher knows only the searchable contents. If a change of a document is recorded and
        # not searchable yet, its new content may have a later expiry date. So a document is removed
        # only if its content hash is the same with and without the recorded changes.
        latest_hashes = self.content_hashes()
        searchable_hashes = self.base_versions(expired)
        versions: dict[str, str] = {}
        for document_id in sorted(expired):
            latest_hash = latest_hashes.get(document_id)
            if latest_hash is not None and latest_hash == searchable_hashes.get(document_id):
                versions[document_id] = latest_hash
        if not versions:
            return None
        # Naming the versions also refuses a removal if another writer changes a document now.
        return self.remove(versions, EXPIRY_SOURCE, versions)

    def record(
        self,
        documents: Iterable[Document],
        source: str,
        rejected: Sequence[Rejection] = (),
        batch: str | None = None,
        conditions: Mapping[str, VersionCondition] = {},
    ) -> Receipt:
        """Record clean documents to add or update. `apply` makes them searchable.

        Args:
            documents: The documents.
            source: Origin of the documents, such as "api" or the name of a file.
            rejected: Rows of the same batch that were refused.
            batch: Name of the batch, which is recorded only once; see `Ledger.receive`.
            conditions: Versions that documents must have, by document id.

        Raises:
            FreshetError: If the current generation was made from another ledger.
        """
        ledger = self.ledger
        require_matching_ledger(ledger, self.generation)
        recorded = list(documents)
        receipt = ledger.receive(recorded, source, rejected, batch, conditions)
        # Unchanged documents need no encoding. The receipt does not tell which ones they are.
        if len(receipt.events) == len(recorded):
            self.note_recorded(recorded)
        return receipt

    def forgotten_queries(self) -> frozenset[str]:
        """Return the hashes of the queries that a person asked to forget; see `query_hash`."""
        ledger = self.ledger_if_exists
        if ledger is None:
            return frozenset()
        return ledger.forgotten_queries()

    def clean_rows(
        self, rows: Iterable[RawRow] | CleanRows, source: str, only_known: bool = False
    ) -> CleanRows:
        """Clean rows as `receive` does, without recording them.

        Queries that a person asked to forget are removed from the rows.

        Args:
            rows: Rows of a file, mappings, or rows that are clean already.
            source: Origin of the rows, such as "api" or the name of a file.
            only_known: Whether to refuse documents that do not exist yet.

        Returns:
            The documents, and the refused rows.
        """
        if isinstance(rows, CleanRows):
            cleaned = rows
        else:
            cleaned = clean_rows(rows, self.settings, source)
        cleaned = cleaned.without_queries(self.forgotten_queries())
        if not only_known:
            return cleaned
        return cleaned.restricted_to(self.existing_ids(cleaned.document_ids), UNKNOWN_DOCUMENT)

    def remove(
        self,
        document_ids: Iterable[str],
        source: str,
        versions: Mapping[str, str | None] = {},
    ) -> Receipt:
        """Record removals of documents. After `apply`, searches do not find them any more.

        Ids that never belonged to a document are refused. A document may be removed twice.

        Args:
            document_ids: Ids of the documents.
            source: Origin of the removal, such as "freshet delete".
            versions: Versions that documents must have, by document id.

        Raises:
            FreshetError: If the current generation was made from another ledger.
        """
        ids = list(document_ids)
        existing = self.existing_ids(ids, include_removed=True)
        to_remove: list[str] = []
        refused: list[Rejection] = []
        for row_number, document_id in enumerate(ids, 1):
            if document_id in existing:
                to_remove.append(document_id)
            else:
                reason = f"unknown id: {UNKNOWN_DOCUMENT}"
                refused.append(Rejection(row_number, printable(document_id), reason))

        ledger = self.ledger
        require_matching_ledger(ledger, self.generation)
        base_versions = self.base_versions(versions.keys())
        conditions: dict[str, VersionCondition] = {}
        for row_number, document_id in enumerate(ids, 1):
            if document_id in versions:
                conditions[document_id] = VersionCondition(
                    versions[document_id], base_versions.get(document_id), row_number
                )
        return ledger.remove(to_remove, source, refused, conditions)

    def rename_documents(self, documents: Mapping[str, Document], source: str) -> Receipt:
        """Record that documents get other ids. `apply` makes them searchable under the new ids.

        The documents keep the queries of their rows. Feedback on a document gets the new id, too.

        Args:
            documents: Documents with their new ids, by old id.
            source: Origin of the documents, such as the command that renames them.

        Raises:
            FreshetError: If a document was changed meanwhile, or the current generation was made
                from another ledger. Nothing is changed then.
        """
        ledger = self.ledger
        require_matching_ledger(ledger, self.generation)
        hashes = self.content_hashes()
        versions = {document_id: hashes[document_id] for document_id in documents}
        return ledger.rename_documents(documents, versions, source)

    def existing_ids(self, document_ids: Iterable[str], include_removed: bool = False) -> set[str]:
        """Return the ids that belong to documents, whether they are searchable or waiting.

        This method does not create a ledger.

        Args:
            document_ids: Ids to look up.
            include_removed: Whether to include ids of documents that the ledger has removed.
        """
        ids = {document_id for document_id in document_ids if is_possible_id(document_id)}
        existing: set[str] = set()

        # A document with events exists if its last event is a put.
        ledger = self.ledger_if_exists
        if ledger is not None:
            last_events = ledger.latest(ids)
            for document_id, event in last_events.items():
                if include_removed or event.kind == EventKind.PUT:
                    existing.add(document_id)
            ids -= last_events.keys()

        # Documents without events exist if they are in the build.
        if ids:
            existing.update(document_rows(self.generation, ids, ()))
        return existing

    def content_hashes(self) -> dict[str, str]:
        """Return the content hash of each document after all pending events, by document id.

        Pending events are recorded in the ledger, and not searchable yet.
        """
        hashes = document_hashes(self.generation)
        if self.ledger_if_exists is not None:
            for event in self.ledger_view.pending().changes:
                if event.kind == EventKind.PUT:
                    hashes[event.document_id] = event.content_hash
                else:
                    hashes.pop(event.document_id, None)
        return hashes

    def has_pending_changes(self) -> bool:
        """Return whether changes of documents are recorded and not searchable yet.

        This method does not create a ledger.
        """
        if self.ledger_if_exists is None:
            return False
        return self.ledger_view.backlog().number > 0

    def apply(self, limit: int | None = None) -> ApplyResult | None:
        """Apply pending events: build a new generation, and make it the current one.

        Removals of expired documents are recorded first.

        Args:
            limit: Number of oldest events to apply, approximately; see `LedgerView.pending`. None
                applies all.

        Returns:
            The new generation and the documents that changed. None if no event is pending.

        Raises:
            FreshetError: If a document would not be found by its own vector (see
                `verify_searchable`). The events stay pending.
        """
        self.remove_expired()
        with self._lock_for_change() as ledger_view:
            pending = ledger_view.pending(limit)
            if not self._has_work(pending):
                return None
            # Feedback alone makes no generation. It takes effect together with the next change.
            if pending.changes and self._record_solves(pending):
                pending = ledger_view.pending()
            return apply_pending(self.builder, ledger_view.cursor, pending)

    def _has_work(self, pending: Pending) -> bool:
        """Return whether pending events change this retriever's index.

        Events that solve vectors of other retrievers do not. They are skipped together with the
        next change.
        """
        if pending.changes:
            return True
        return any(event.solves_for(self.retriever) for event in pending.events)

    def _record_solves(self, pending: Pending) -> bool:
        """Record events that solve vectors again, because feedback changed known queries.

        Nothing is recorded if `pending` does not reach the end of the ledger. A later call, which
        reaches it, records the events then.

        Args:
            pending: Events that are about to be applied.

        Returns:
            Whether events were recorded.
        """
        reaches_end = pending.position == self.ledger.position()
        if not reaches_end:
            return False

        # Queries for which a pending event already solves the vector of each document. Such an
        # event has no effect if a later event changes the document.
        last_changes: dict[str, Change] = {}
        recorded: dict[str, frozenset[str]] = {}
        for event in pending.events:
            if event.kind == EventKind.SOLVE:
                if event.solves_for(self.retriever):
                    recorded[event.document_id] = event.solved_queries
            else:
                last_changes[event.document_id] = change_of(event)
                recorded.pop(event.document_id, None)

        missing: dict[str, frozenset[str]] = {}
        for document_id, hashes in self.builder.find_documents_to_solve(last_changes).items():
            if recorded.get(document_id) != hashes:
                missing[document_id] = hashes
        if missing:
            self.ledger.record_solves(missing, FEEDBACK_SOURCE, self.retriever)
        return bool(missing)

    def solve_again(
        self, document_ids: Sequence[str], source: str, forgotten: Set[str] = frozenset()
    ) -> Generation:
        """Solve the vectors of documents again, after known queries were forgotten or erased.

        Each vector is solved for the same queries as before, except for queries that are no longer
        known. An event of the ledger records it, with the hashes of the queries, and all pending
        events are applied.

        If vectors are not solved any more, the documents get their encodings back, and no event is
        recorded.

        Args:
            document_ids: Ids of the documents. Documents that are not live are skipped.
            source: Reason for solving the vectors again, which the ledger records.
            forgotten: Hashes of the queries that a person asked to forget.

        Returns:
            The current generation afterwards.
        """
        # Without documents, neither the lock nor the searcher is needed.
        if not document_ids:
            return self.generation
        with self._lock_for_change() as ledger_view:
            solve_for: dict[str, frozenset[str]] = {}
            for solved in solved_documents(self.generation):
                if solved.document_id in document_ids:
                    hashes = {query_hash(query.text) for query in solved.queries}
                    solve_for[solved.document_id] = frozenset(hashes - forgotten)
            if not solve_for:
                return self.generation
            if not self.builder.solves_vectors:
                return self._write_encodings(solve_for, ledger_view.cursor)

            self.ledger.record_solves(solve_for, source, self.retriever)
            pending = ledger_view.pending()
            return apply_pending(self.builder, ledger_view.cursor, pending).generation

    def _write_encodings(self, document_ids: Collection[str], cursor: LedgerCursor) -> Generation:
        """Write documents with the same content again, by a builder that does not solve vectors.

        Args:
            document_ids: Ids of live documents.
            cursor: Part of the ledger that the current generation contains.

        Returns:
            The new generation.
        """
        documents = self.builder.searcher.documents(document_ids)
        applied = self.builder.apply(
            changes=[documents[document_id] for document_id in sorted(documents)],
            cursor=cursor,
            provenance={"solved_again": len(documents)},
            guard=verify_searchable,
            # The contents are unchanged, but the documents must be written again.
            rewritten=documents.keys(),
        )
        return applied.generation

    def compact(self, rewrite: bool = False) -> Generation:
        """Merge all added segments into one, which makes searches faster.

        Rankings do not change.

        Args:
            rewrite: Whether to write all files again, except those of the build; see
                `GenerationBuilder.compact`.

        Returns:
            The new generation. Without `rewrite`, the current one if there is nothing to merge.
        """
        with self._lock_for_change() as ledger_view:
            return self.builder.compact(ledger_view.cursor, rewrite)

    def update_known_queries(self) -> Generation:
        """Make changed known queries searchable, without changing a document.

        Returns:
            The new generation, or the current one if no known query changed.
        """
        with self._lock_for_change() as ledger_view:
            return self.builder.update_known_queries(ledger_view.cursor)

    def tune(self, weights: Mapping[str, float], provenance: Mapping[str, Any]) -> Generation:
        """Search with other weights of the fusion. No document is changed or encoded.

        Args:
            weights: Weight of each component.
            provenance: Origin of the weights, for the manifest of the new generation.
        """
        with self._lock_for_change() as ledger_view:
            return self.builder.tune(weights, ledger_view.cursor, provenance)

    def revert(self, number: int) -> Generation:
        """Take all documents back to their state in an earlier generation (snapshot of the index).

        This affects all retrievers. Pending events, which are recorded and not searchable yet, are
        not undone. They are applied next.

        Args:
            number: Number of a generation of the default retriever.

        Returns:
            The new current generation, which shares the files of generation `number`.

        Raises:
            FreshetError: If the generation is missing or damaged, or this is not the default
                retriever. Nothing is changed then.
        """
        default = default_retriever(self.project.live)
        if self.retriever != default:
            raise FreshetError(
                "documents belong to all retrievers, so they are reverted with the default "
                f"retriever {default}: freshet rollback --generation N. To search an older index "
                f"of {self.retriever}, which then applies what it lacks: freshet rewind "
                f"--retriever {self.retriever} --generation {number}"
            )
        if self.generation.cursor.replay:
            # The generation comes from another ledger, so it is unknown which events it contains.
            # After `apply` it is known.
            self.apply()

        with self._lock_for_change() as ledger_view:
            current = self.generation
            earlier = self.store.read(number)
            if earlier.number == current.number:
                return current

            earlier.verify_all()
            target = RevertTarget(
                retriever=self.retriever,
                generation=number,
                cursor=earlier.cursor,
                current=current.number,
                current_cursor=ledger_view.cursor,
                contents=partial(read_contents, earlier),
            )
            # If this process is killed after the ledger has the revert, `_lock_for_change` of the
            # next one completes it.
            event = self.ledger.revert(target)
            return self._publish_reverted(number, event)

    def rewind(self, number: int) -> Generation:
        """Replace a faulty index of this retriever by an older one.

        Unlike `revert`, this changes no document. The events after the older generation (snapshot
        of the index) become pending again, so that the next `apply` repeats them.

        Args:
            number: Number of the older generation.

        Returns:
            The new current generation, which shares the files of generation `number`.

        Raises:
            FreshetError: If the generation is missing or damaged. Nothing is changed then.
        """
        with self._lock_for_change():
            generation = self.store.read(number)
            return self.store.publish_again(generation, generation.cursor, {"rewound_to": number})

    def collect_garbage(self, keep: int, registered: Collection[int] = ()) -> tuple[int, ...]:
        """Delete old generations.

        Args:
            keep: Number of newest generations to keep, besides the current one.
            registered: Numbers of further generations to keep, with all folders that they read.

        Returns:
            Numbers of the deleted generations.
        """
        with self._lock_for_change():
            return self.builder.collect_garbage(keep, registered)

    def recover(self) -> None:
        """Clean up after a process that was killed; see `_lock_for_change`.

        Raises:
            FreshetError: If the current generation was made from another ledger.
        """
        with self._lock_for_change():
            pass

    def _publish_reverted(self, number: int, event: int) -> Generation:
        """Publish the files of an earlier generation again, as a new current generation.

        This is the second step of a revert. The first step recorded the revert in the ledger.

        Args:
            number: Number of the earlier generation.
            event: Id of the revert's event. The new generation contains all events up to it.

        Returns:
            The new current generation.
        """
        generation = self.store.read(number)
        # A cursor's `trained` is the last event whose document the retriever may have been trained
        # on. The earlier generation may come from another ledger, such as one before a restore. Its
        # event ids are not valid in this ledger, so 0 is used: no event counts as trained on.
        is_of_this_ledger = self.ledger.mismatch(generation.cursor.position) is None
        trained = generation.cursor.trained if is_of_this_ledger else 0
        cursor = LedgerCursor(self.ledger.position(event), trained)
        return self.store.publish_again(generation, cursor, {"reverted_to": number})

    @contextmanager
    def _lock_for_change(self) -> Iterator[LedgerView]:
        """Context manager that holds the lock of the live collections, and recovers first.

        Only one process at a time can hold the lock. The recovery repairs the effects of a process
        that was killed:

        - Folders of unfinished generations are deleted.
        - A revert that was recorded in the ledger but not made searchable is completed.

        Yields:
            View of the ledger that tells which events the current generation contains.

        Raises:
            FreshetError: If the current generation was made from another ledger.
        """
        with file_lock(self.store.live / WRITER_LOCK):
            self.store.remove_uncommitted()
            ledger = self.ledger
            current = self.generation
            cursor = require_matching_ledger(ledger, current)

            last_revert = ledger.last_revert()
            if last_revert is not None:
                # The process that recorded the revert was killed if the generation which was
                # current then is still current, and does not contain the revert.
                is_of_retriever = last_revert.retriever == self.retriever
                was_current = last_revert.current == current.number
                is_contained = last_revert.id <= cursor.position.event
                if is_of_retriever and was_current and not is_contained:
                    generation = self._publish_reverted(last_revert.generation, last_revert.id)
                    cursor = generation.cursor
            yield ledger.view_at(cursor)


def live_retrievers(project: Project) -> list[str]:
    """Return the names of all live retrievers, the default retriever first.

    A retriever is live if it has a current generation. New documents are added to all of them.

    Args:
        project: The project.
    """
    default = default_retriever(project.live)
    names = [default]
    for name in retrievers(project.live):
        if name != default:
            names.append(name)
    return names


def forecast_changes(generation: Generation, changes: Iterable[Change]) -> dict[str, list[str]]:
    """Predict the status of each document if changes were applied, such as "added".

    Args:
        generation: Generation that the changes would be applied to.
        changes: Changes in their order. Only the last change of each document counts.

    Returns:
        Ids of the documents by status (see `STATUSES`), ascending.
    """
    last_changes = {change.document_id: change for change in changes}
    rows = document_rows(generation, last_changes, ("content_hash",))
    ids: dict[str, list[str]] = {status: [] for status in STATUSES}
    for document_id, change in sorted(last_changes.items()):
        content_hash = None
        if document_id in rows:
            content_hash = rows[document_id]["content_hash"]
        ids[status_of(change, content_hash)].append(document_id)
    return ids
