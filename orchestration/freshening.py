"""The way of a document into the live collection: cleaned, written to the ledger, made part of a new generation.

The switch of the live collection's pointer is the one commit point. A generation's manifest says up to which event of
the ledger it goes; so whatever was interrupted, comparing the two tells what became of every event, and each is applied
exactly once.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.documents import Document
from model_code.ledger.records import Receipt, Rejection
from orchestration import arrivals, known_documents, parameters
from orchestration.announced_rollback import announced_rollback, forget_rollback
from orchestration.file_lock import file_lock
from orchestration.ledgers import WRITER_LOCK, open_ledger
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
    from model_code.live.generation import Generation
    from model_code.live.writer import LiveWriter


class Freshener:
    """Receives documents for one retriever's live collection and applies them; one process applies at a time."""

    def __init__(self, project: Project, retriever: str | None = None) -> None:
        """retriever: the one that is searched by default. FreshetError if nothing is live."""
        from model_code.live.collection import Collection, default_retriever

        self.project, self.retriever = project, retriever or default_retriever(project.live)
        self.collection = Collection(project.live, self.retriever)
        self.collection.current()

    @cached_property
    def ledger(self) -> Ledger:
        """The project's ledger, made by the first document; FreshetError if another one filled the collection."""
        ledger = open_ledger(self.project, self.retriever)
        require_own(ledger, self.collection.current())
        return ledger

    @cached_property
    def writer(self) -> LiveWriter:
        """The writer of the live collection; it keeps encoder and index in memory."""
        from orchestration.additions import writer_of

        return writer_of(self.project, self.retriever)

    @property
    def settings(self) -> CorpusSettings:
        """The rules by which rows are read and cleaned, as `params.yaml` states them now."""
        return parameters.load(self.project.params_file).corpus

    def receive(self, rows: Iterable[Mapping[str, Any]], source: str, known_only: bool = False) -> Receipt:
        """Record rows with id, title, text, fields and queries; they are applied by `apply_pending`.

        source: where they come from, such as "api"; known_only: refuse documents that are not there yet.
        """
        found = arrivals.rows_of_mappings(rows, self.settings, source)
        return self.take(arrivals.admit(found, self.settings), source, known_only)

    def receive_file(self, path: Path, source: str, known_only: bool = False, batch: str | None = None) -> Receipt:
        """Record the rows of a file; a `batch` (the file's hash) is received once only."""
        found = arrivals.rows_of_file(path, self.settings, source)
        return self.take(arrivals.admit(found, self.settings), source, known_only, batch)

    def take(
        self, found: arrivals.Arrivals, source: str, known_only: bool = False, batch: str | None = None
    ) -> Receipt:
        """Record rows that are clean already."""
        documents, refused = self.sift(found, known_only)
        return self.ledger.receive(documents, source, refused, batch)

    def sift(self, found: arrivals.Arrivals, known_only: bool) -> tuple[list[Document], list[Rejection]]:
        """The documents to record and the rows to refuse; documents that are not there yet too, if `known_only`."""
        documents, refused = list(found.documents), list(found.rejected)
        if not known_only:
            return documents, refused
        ids = [one.document_id for one in documents]
        known = known_documents.known(self.ledger, self.collection.current(), ids)
        refused += [Rejection(row, one, UNKNOWN) for row, one in zip(found.rows, ids, strict=True) if one not in known]
        return [one for one in documents if one.document_id in known], refused

    def remove(self, document_ids: Iterable[str], source: str) -> Receipt:
        """Record removals; ids of no document, searchable or waiting, are refused."""
        asked = list(document_ids)
        known = known_documents.known(self.ledger, self.collection.current(), asked, removed_too=True)
        refused = [Rejection(i, one, UNKNOWN) for i, one in enumerate(asked, 1) if one not in known]
        return self.ledger.remove([one for one in asked if one in known], source, refused)

    def apply_pending(self, limit: int | None = None) -> Applied | None:
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
        events, current = self.ledger.pending(limit), self.collection.current().watermark
        if limit is None or not events or events[-1].id > current:
            return events
        return [event for event in self.ledger.pending() if event.id <= current]

    def _apply_lacking(self) -> None:
        """Make a generation of what lies pending before the watermark: the next one's watermark will claim it."""
        current = self.collection.current().watermark
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
            before = self.collection.current().number
            with announced_rollback(self.collection, number):
                generation = self.collection.switch(number)
                self.ledger.register(unknown(self.ledger, generation))
                self.ledger.roll_back(number)
            self.ledger.record_decision("rollback", f"generation {number} in place of {before}, as was asked for")
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
            reconcile(self.ledger, self.collection.current())
            forget_rollback(self.collection)  # one that was cut off
            yield


UNKNOWN = "unknown id: no such document is searchable or waiting"
