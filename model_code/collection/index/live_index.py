"""The way of a document into a live collection: cleaned, written to the ledger, made part of a new
generation.

The switch of the live collection's pointer is the one commit point. A generation's manifest says
where it stands in the log, and that is all that says so: whatever was interrupted, what is pending
follows from the two, and each event is applied exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as Ids
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from model_code.collection.generations.generation import Generation, document_hashes, document_rows
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
from model_code.collection.generations.verification import verify_searchable
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    contents,
    open_ledger,
    open_ledger_if_exists,
    require_no_log,
    require_sound,
)
from model_code.collection.ledger.events import EventKind, LedgerCursor, Receipt
from model_code.collection.ledger.ledger import Ledger, RevertTarget
from model_code.collection.ledger.states import LedgerView, Pending
from model_code.corpus.clean_rows import CleanRows, RawRow, clean_rows
from model_code.corpus.cleaning import is_possible_id
from model_code.corpus.rows import Rejection, printable
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.incdsi.settings import AdditionSettings
from model_code.project import Project, file_lock
from model_code.text.documents import STATUSES, Change, Document, Remove, status_of

# the folder of a live retriever, and the suffix of a ledger, that was set aside
DAMAGED = "damaged"

# What is wrong with an id that is refused as "unknown id".
UNKNOWN_DOCUMENT = "no such document is searchable or waiting"


class ApplyingService(Protocol):
    """A running service that applies recorded changes, because its encoder is already loaded."""

    def apply(self) -> Any:
        """Apply all pending changes; the result's `generation` is the first one in which searches
        find them.
        """


FindService = Callable[[Project], ApplyingService | None]


class LiveIndex:
    """Receives documents for one retriever's live collection and applies them; one process applies
    at a time.
    """

    def __init__(
        self,
        project: Project,
        retriever: str | None = None,
        loaded: LoadedSegments = dict,
        find_service: FindService = lambda project: None,
    ) -> None:
        """retriever: the one that is searched by default; loaded: see `LoadedSegments`. FreshetError if
        nothing is live.

        find_service: finds a running service of the project, which then applies what this process
        records.
        """
        self.project, self.retriever, self.loaded = (
            project,
            retriever or default_retriever(project.live),
            loaded,
        )
        self.collection = GenerationStore(project.live, self.retriever)
        self.collection.current()
        self.find_service = find_service
        self._ledger: Ledger | None = None

    @property
    def ledger_if_exists(self) -> Ledger | None:
        """The project's log; None if no document ever arrived, FreshetError if the one of the
        generation is gone.
        """
        if self._ledger is None or self._ledger.is_replaced():
            self._ledger = open_ledger_if_exists(self.project, self.retriever)
            if self._ledger is None:
                require_no_log(self.generation)
        return self._ledger

    @property
    def ledger(self) -> Ledger:
        """The same, made by the first document."""
        if self.ledger_if_exists is None:
            self._ledger = open_ledger(self.project, self.retriever)
        return self._ledger

    @cached_property
    def writer(self) -> GenerationBuilder:
        """The writer of the live collection; it keeps encoder and index in memory."""
        writer = make_generation_builder(self.project, self.retriever)
        writer.loaded = self.loaded
        return writer

    def warm(self) -> None:
        """Load encoder and index, before the first document comes."""
        _ = self.writer.searcher

    @property
    def generation(self) -> Generation:
        """The one that is searched now."""
        return self.collection.current()

    @property
    def settings(self) -> CorpusSettings:
        """The rules by which rows are read and cleaned, as `params.yaml` states them now."""
        return self.project.settings("corpus", CorpusSettings)

    def receive(
        self,
        rows: Iterable[RawRow] | CleanRows,
        source: str,
        batch: str | None = None,
        only_known: bool = False,
    ) -> Receipt:
        """Record documents to add or update; `apply` makes them searchable.

        rows: of a file (`read_file`), plain mappings with id, title, text, fields and queries, or
        what `clean_rows` made of them. source: where they come from, such as "api"; batch: a name, such
        as a file's hash, that is received once only; only_known: refuse documents that are not
        there yet.
        """
        cleaned = self.clean_rows(rows, source, only_known)
        return self.record(cleaned.documents, source, cleaned.rejected, batch)

    def record(
        self,
        documents: Iterable[Document],
        source: str,
        rejected: Sequence[Rejection] = (),
        batch: str | None = None,
    ) -> Receipt:
        """Record clean documents to add or update; `apply` makes them searchable.

        Args:
            documents: The documents.
            source: Where they come from.
            rejected: Rows of the same batch that were refused.
            batch: Name of a batch that is received once only.
        """
        ledger = self.ledger
        require_sound(ledger, self.generation)
        return ledger.receive(documents, source, rejected, batch)

    def clean_rows(
        self, rows: Iterable[RawRow] | CleanRows, source: str, only_known: bool = False
    ) -> CleanRows:
        """The rows as `receive` takes them: sound documents, and rows to refuse."""
        cleaned = rows if isinstance(rows, CleanRows) else clean_rows(rows, self.settings, source)
        if not only_known:
            return cleaned
        return cleaned.restricted_to(self.existing_ids(cleaned.document_ids), UNKNOWN_DOCUMENT)

    def remove(self, document_ids: Iterable[str], source: str) -> Receipt:
        """Record removals; ids of no document, searchable or waiting, are refused."""
        ids = list(document_ids)
        existing = self.existing_ids(ids, removed_too=True)
        refused = [
            Rejection(row, printable(id_), f"unknown id: {UNKNOWN_DOCUMENT}")
            for row, id_ in enumerate(ids, 1)
            if id_ not in existing
        ]
        ledger = self.ledger
        require_sound(ledger, self.generation)
        return ledger.remove([id_ for id_ in ids if id_ in existing], source, refused)

    def existing_ids(self, document_ids: Iterable[str], removed_too: bool = False) -> set[str]:
        """Return the ids that exist: added and not removed since, or part of the built corpus.

        removed_too: those removed since as well, so that removing twice is no error. Asking makes
        no ledger.
        """
        ids = set(filter(is_possible_id, document_ids))
        ledger = self.ledger_if_exists
        last = {} if ledger is None else ledger.latest(ids)
        added = {id_ for id_, event in last.items() if removed_too or event.kind == EventKind.PUT}
        unnamed_ids = ids - last.keys()
        return added | (
            document_rows(self.generation, unnamed_ids, ()).keys() if unnamed_ids else set()
        )

    def content_hashes(self) -> dict[str, str]:
        """Return the content hash of each document, as if all pending events were applied."""
        hashes = document_hashes(self.generation)
        if self.ledger_if_exists is not None:
            for event in self.ledger_view.pending().events:
                if event.kind == EventKind.PUT:
                    hashes[event.document_id] = event.content_hash
                else:
                    hashes.pop(event.document_id, None)
        return hashes

    def apply(self, limit: int | None = None) -> ApplyResult | None:
        """Make the oldest pending events (at least `limit`) a new generation; None if there are
        none.

        FreshetError if not every document would be found by its own vector, see
        `verify_searchable`; the events stay pending.
        """
        with self._writing() as ledger_view:
            pending = ledger_view.pending(limit)
            return (
                apply_pending(self.writer, ledger_view.cursor, pending) if pending.events else None
            )

    def compact(self) -> Generation:
        """Merge the generation's segments into one; rankings stay as they are."""
        with self._writing() as ledger_view:
            return self.writer.compact(ledger_view.cursor)

    def revert(self, number: int) -> Generation:
        """Take all documents back to what generation `number` holds, and search it again.

        What arrived since is taken back, in every retriever; what no search had found yet waits on,
        and is applied next. FreshetError if the generation is missing or damaged, or the retriever
        is not the one that is searched by default; then nothing is changed.
        """
        default = default_retriever(self.project.live)
        if self.retriever != default:
            raise FreshetError(
                f"documents belong to all retrievers, so they go back with {default}, which is searched by default: "
                f"freshet rollback --generation N; freshet rewind --retriever {self.retriever} --generation {number} "
                f"searches an older index of {self.retriever}, which then takes in what it lacks"
            )
        if self.generation.cursor.replay:
            self.apply()  # else nobody knows what of the log no search has found yet
        with self._writing() as ledger_view:
            current, chosen = self.generation, self.collection.read(number)
            if chosen.number == current.number:
                return current

            chosen.verify_all()
            place, files = chosen.cursor, partial(contents, chosen)
            target = RevertTarget(
                self.retriever, number, place, current.number, ledger_view.cursor, files
            )
            event = self.ledger.revert(target)
            return self._publish_reverted(number, event)

    def rewind(self, number: int) -> Generation:
        """Search generation `number` again, as an index that went wrong; its documents follow the
        log as before.
        """
        with self._writing():
            chosen = self.collection.read(number)
            cursor = chosen.cursor
            return self.collection.publish_again(chosen, cursor, {"rewound_to": number})

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> tuple[int, ...]:
        """Delete generations that neither the `keep` newest, the current nor the `registered` ones
        need.
        """
        with self._writing():
            return self.writer.collect_garbage(keep, registered)

    @property
    def ledger_view(self) -> LedgerView:
        """The log as the generation sees it that is searched now."""
        return self.ledger.view_at(self.generation.cursor)

    def begin(self) -> None:
        """Do what every writer does first: remove what one that was killed left, finish its revert,
        check the log.
        """
        with self._writing():
            pass

    def _publish_reverted(self, number: int, event: int) -> Generation:
        """The generation that a revert goes back to, at the event of the revert."""
        chosen = self.collection.read(number)
        before = chosen.cursor
        trained = before.trained if self.ledger.mismatch(before.position) is None else 0
        cursor = LedgerCursor(self.ledger.position(event), trained)
        return self.collection.publish_again(chosen, cursor, {"reverted_to": number})

    @contextmanager
    def _writing(self) -> Iterator[LedgerView]:
        """Hold the one writer's lock, with a log that is the collection's own; yields its view of
        the log.

        What a writer that was killed left is removed, and a revert that it had begun is finished.
        """
        with file_lock(self.collection.live / WRITER_LOCK):
            self.collection.remove_uncommitted()
            ledger, current = self.ledger, self.generation
            cursor, last = require_sound(ledger, current), ledger.last_revert()
            mine = last is not None and (last.retriever, last.current) == (
                self.retriever,
                current.number,
            )
            if mine and last.id > cursor.position.event:
                cursor = self._publish_reverted(last.generation, last.id).cursor
            yield ledger.view_at(cursor)


def additions_folder(project: Project) -> Path:
    """Where the project remembers additions."""
    return project.state / "additions"


def make_generation_builder(project: Project, retriever: str) -> GenerationBuilder:
    """The writer of a retriever's live collection; plain where the settings leave encodings as they
    are.
    """
    chosen = project.settings("additions", AdditionSettings)
    if not chosen.refine:
        return GenerationBuilder(project.live, retriever)
    from model_code.incdsi.generation_builder import IncDsiGenerationBuilder  # with all of IncDSI

    return IncDsiGenerationBuilder(project.live, retriever, chosen, additions_folder(project))


def apply_pending(writer: GenerationBuilder, cursor: LedgerCursor, pending: Pending) -> ApplyResult:
    """Make pending events the next generation, which says in its provenance where they came from.

    cursor: where the generation stands that they are applied to.
    """
    events = pending.events
    sources = sorted({event.source for event in events})
    provenance = {"sources": sources, "events": [events[0].id, events[-1].id]}
    cursor = replace(cursor, position=pending.position, replay=False)
    changes = [event.document or Remove(event.document_id) for event in events]
    return writer.apply(changes, cursor, provenance, verify_searchable)


def live_retrievers(project: Project) -> list[str]:
    """Names of the live retrievers, which all receive new documents; the one searched by default
    first.
    """
    default = default_retriever(project.live)
    return [default, *(name for name in retrievers(project.live) if name != default)]


def forecast_changes(generation: Generation, changes: Iterable[Change]) -> dict[str, list[str]]:
    """What making `changes` searchable would come to: ids by status, of which the last change of a
    document decides.
    """
    last = {change.document_id: change for change in changes}
    before = document_rows(generation, last, ("content_hash",))
    ids: dict[str, list[str]] = {status: [] for status in STATUSES}
    for id_, change in sorted(last.items()):
        ids[status_of(change, before[id_]["content_hash"] if id_ in before else None)].append(id_)
    return ids
