"""The way of a document into a live collection: cleaned, written to the ledger, made part of a new generation.

The switch of the live collection's pointer is the one commit point. A generation's manifest says up to which event of
the ledger it goes; so whatever was interrupted, comparing the two tells what became of every event, and each is applied
exactly once.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from model_code.documents import Change, Document
from model_code.ledger.database import is_there
from model_code.ledger.records import PUT, Receipt, Rejection
from model_code.live.collection import Collection, default_retriever, retrievers
from model_code.live.documents import COLUMNS, DocumentFile
from model_code.live.generation import DOCUMENTS, Generation
from model_code.live.removed import removed_by_part
from orchestration import parameters
from orchestration.announced_rollback import announced_rollback, forget_rollback
from orchestration.file_lock import file_lock
from orchestration.ledgers import WRITER_LOCK, ledger_url, open_ledger
from orchestration.live.rows import CleanRows, RawRow, clean
from orchestration.live_status import live_status
from orchestration.opening import apply_events
from orchestration.project import Project
from orchestration.reconciling import reconcile, require_own, unknown

if TYPE_CHECKING:
    from model_code.corpus.settings import CorpusSettings
    from model_code.ledger.ledger import Ledger
    from model_code.ledger.records import Event
    from model_code.live.applied import Applied
    from model_code.live.garbage import Freed
    from model_code.live.writer import LiveWriter

UNKNOWN = "unknown id: no such document is searchable or waiting"


class LiveCollection:
    """Receives documents for one retriever's live collection and applies them; one process applies at a time."""

    def __init__(self, project: Project, retriever: str | None = None) -> None:
        """retriever: the one that is searched by default. FreshetError if nothing is live."""
        self.project, self.retriever = project, retriever or default_retriever(project.live)
        self.collection = Collection(project.live, self.retriever)
        self.collection.current()

    @cached_property
    def ledger(self) -> Ledger:
        """The project's ledger, made by the first document; FreshetError if another one filled the collection."""
        ledger = open_ledger(self.project, self.retriever)
        require_own(ledger, self.generation)
        return ledger

    @cached_property
    def writer(self) -> LiveWriter:
        """The writer of the live collection; it keeps encoder and index in memory."""
        from orchestration.live.additions import writer_of

        return writer_of(self.project, self.retriever)

    @property
    def generation(self) -> Generation:
        """The one that is searched now."""
        return self.collection.current()

    @property
    def settings(self) -> CorpusSettings:
        """The rules by which rows are read and cleaned, as `params.yaml` states them now."""
        return parameters.load(self.project.params_file).corpus

    def receive(
        self, rows: Iterable[RawRow] | CleanRows, source: str, batch: str | None = None, only_known: bool = False
    ) -> Receipt:
        """Record documents to add or update; `apply` makes them searchable.

        rows: of a file (`read_file`), plain mappings with id, title, text, fields and queries, or what `clean` made of
        them. source: where they come from, such as "api"; batch: a name, such as a file's hash, that is received once
        only; only_known: refuse documents that are not there yet.
        """
        cleaned = self.clean(rows, source, only_known)
        return self.ledger.receive(cleaned.documents, source, cleaned.rejected, batch)

    def clean(self, rows: Iterable[RawRow] | CleanRows, source: str, only_known: bool = False) -> CleanRows:
        """The rows as `receive` takes them: sound documents, and rows to refuse."""
        cleaned = rows if isinstance(rows, CleanRows) else clean(rows, self.settings, source)
        if not only_known:
            return cleaned
        return cleaned.restricted_to(self.known(cleaned.document_ids), UNKNOWN)

    def remove(self, document_ids: Iterable[str], source: str) -> Receipt:
        """Record removals; ids of no document, searchable or waiting, are refused."""
        ids = list(document_ids)
        known = self.known(ids, removed_too=True)
        refused = [Rejection(row, id_, UNKNOWN) for row, id_ in enumerate(ids, 1) if id_ not in known]
        return self.ledger.remove([id_ for id_ in ids if id_ in known], source, refused)

    def known(self, document_ids: Iterable[str], removed_too: bool = False) -> set[str]:
        """Return the ids that exist: added and not removed since, or part of the built corpus.

        removed_too: those removed since as well, so that removing twice is no error. Asking makes no ledger.
        """
        wanted = set(document_ids)
        kinds = self.ledger.latest(wanted) if is_there(ledger_url(self.project)) else {}
        added = {id_ for id_, kind in kinds.items() if removed_too or kind == PUT}
        silent = wanted - kinds.keys()
        return added | (held(self.generation, silent, ()).keys() if silent else set())

    def forecast(self, changes: Iterable[Change]) -> dict[str, list[str]]:
        """See `forecast`, for the generation that is searched now."""
        return forecast(self.generation, changes)

    def apply(self, limit: int | None = None) -> Applied | None:
        """Make the oldest pending events (at most `limit`) a new generation; None if there are none.

        FreshetError if not every document would be found by its own vector (see `live.guard`); the events stay pending.
        """
        with self._writing():
            return self._apply(self._batch(limit))

    def _apply(self, events: Sequence[Event]) -> Applied | None:
        from model_code.live.guard import everything_is_found

        if not events:
            return None
        applied = apply_events(self.writer, events, everything_is_found)
        self.ledger.settle(applied.generation.watermark, applied.generation.number, applied.statuses)
        return applied

    def _batch(self, limit: int | None) -> list[Event]:
        """The oldest pending events. Those before the generation's watermark, which another build held and this one
        lacks, go together: a watermark can only say that a generation contains all of them.
        """
        events, current = self.ledger.pending(limit), self.generation.watermark
        if limit is None or not events or events[-1].id > current:
            return events
        return [event for event in self.ledger.pending() if event.id <= current]

    def _apply_lacking(self) -> None:
        """Make a generation of what lies pending before the watermark: the next one's watermark will claim it."""
        current = self.generation.watermark
        self._apply([event for event in self.ledger.pending() if event.id <= current])

    def compact(self) -> Generation:
        """Merge the generation's segments into one; rankings stay as they are."""
        with self._writing():
            self._apply_lacking()
            generation = self.writer.compact()
            self.ledger.settle(generation.watermark, generation.number, {})
            return generation

    def rollback(self, number: int) -> Generation:
        """Search generation `number` again; events that it lacks are rolled back, those that it holds restored.

        FreshetError if it is missing or damaged; then nothing is changed.
        """
        with self._writing():
            with announced_rollback(self.collection, number):
                generation = self.collection.switch(number)
                self.ledger.register(unknown(self.ledger, generation))
                self.ledger.roll_back(number)
            return generation

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> Freed:
        """Delete generations that neither the `keep` newest, the current nor the `registered` ones need."""
        with file_lock(self.project.live / WRITER_LOCK):
            return self.writer.collect_garbage(keep, registered)

    def status(self) -> dict[str, Any]:
        """What `freshet status` says of the live collection's freshness; reads only."""
        return live_status(self.project, self.retriever)

    def reconcile(self) -> None:
        """After a crash, or when another generation was made current: let the ledger say what is searchable."""
        with self._writing():
            pass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the one writer's lock, with a ledger that agrees with the current generation."""
        with file_lock(self.project.live / WRITER_LOCK):
            reconcile(self.ledger, self.generation)
            forget_rollback(self.collection)  # one that was cut off
            yield


def subscribers(project: Project) -> list[str]:
    """Names of the retrievers that receive new documents, by `live.follow`; the one searched by default first."""
    default = default_retriever(project.live)
    if parameters.load(project.params_file).live.follow == "default":
        return [default]
    return [default, *(name for name in retrievers(project.live) if name != default)]


def held(
    generation: Generation, document_ids: Iterable[str], columns: Sequence[str] = COLUMNS
) -> dict[str, dict[str, Any]]:
    """Those of `document_ids` that the generation finds, by id, with these columns of its files."""
    wanted, documents = set(document_ids), {}
    for number, removed in removed_by_part(generation).items():
        rows = DocumentFile(generation.sibling(number) / DOCUMENTS).read(wanted, columns)
        documents |= {id_: row for id_, row in rows.items() if id_ not in removed}
    return documents


def forecast(generation: Generation, changes: Iterable[Change]) -> dict[str, list[str]]:
    """What making `changes` searchable would come to: ids that would be "added", "updated", "deleted" or "unchanged".

    Of several changes of a document the last counts.
    """
    last = {change.document_id: change for change in changes}
    hashes = {id_: row["content_hash"] for id_, row in held(generation, last, ("content_hash",)).items()}
    statuses: dict[str, list[str]] = {"added": [], "updated": [], "deleted": [], "unchanged": []}
    for id_, change in sorted(last.items()):
        after = change.content_hash if isinstance(change, Document) else None
        before = hashes.get(id_)
        status = "unchanged" if before == after else "deleted" if after is None else "updated" if before else "added"
        statuses[status].append(id_)
    return statuses
