"""Count the changes that are not searchable yet, or not yet measured by a drift check."""

from __future__ import annotations

from dataclasses import dataclass, replace

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.index.project_ledger import (
    backlog_of,
    open_matching_ledger,
)
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.drift.settings import DriftSettings
from model_code.project import Project

# Number of the newest drift check tasks that are read from the ledger. The last one that found too
# few documents is looked for among them.
MAX_PAST_CHECKS = 9


@dataclass(frozen=True)
class IngestBacklog:
    """Counts of the changes that the default retriever still has to index or to check for drift.

    Attributes:
        generation: The number of the current generation, a snapshot of the index.
        documents: Number of searchable documents.
        waiting: Number of events in the ledger that are not searchable yet.
        oldest_seconds: Seconds that the oldest waiting event has waited.
        last_measured: Id of the last event that needs no drift check. A drift report covers it, the
            retriever was trained with it, or a check found too few documents up to it.
        unmeasured: Number of searchable events after `last_measured`.
    """

    generation: int
    documents: int
    waiting: int = 0
    oldest_seconds: float = 0.0
    last_measured: int = 0
    unmeasured: int = 0


def ingest_backlog(project: Project) -> IngestBacklog | None:
    """Return the backlog of the default retriever, or None if nothing is live.

    Raises:
        FreshetError: If the ledger of the current generation is lost.
    """
    if not retrievers(project.live):
        return None
    generation = GenerationStore(project.live, default_retriever(project.live)).current()
    documents = generation.manifest["documents"]

    ledger = open_matching_ledger(project, generation)
    if ledger is None:
        return IngestBacklog(generation.number, documents)

    with ledger:
        last_measured = _last_measured_event(ledger, generation)
        backlog = IngestBacklog(
            generation.number,
            documents,
            last_measured=last_measured,
            unmeasured=max(0, generation.watermark - last_measured),
        )

        waiting = backlog_of(ledger, generation)
        if waiting is None:
            return backlog
        return replace(backlog, waiting=waiting.number, oldest_seconds=waiting.seconds or 0.0)


def events_to_check(backlog: IngestBacklog | None, settings: DriftSettings) -> EventRange | None:
    """Return the events that the next drift check covers, or None if too few are unmeasured.

    The number of events is rounded down to a multiple of `settings.minimum_batch`. The range
    therefore stays the same until another full batch has arrived, and so does the task that is
    requested for the range.
    """
    if backlog is None or backlog.unmeasured < settings.minimum_batch:
        return None

    batches = backlog.unmeasured // settings.minimum_batch
    last = backlog.last_measured + batches * settings.minimum_batch
    return EventRange(backlog.last_measured + 1, last)


def _last_measured_event(ledger: Ledger, generation: Generation) -> int:
    """Return the id of the last event that needs no drift check; 0 if there is none.

    An event needs none if the retriever was trained with it, or if the newest drift report covers
    it. It also needs none if a drift check found too few documents up to it.
    """
    last_measured = max(0, generation.cursor.trained)

    for report in ledger.recent_drift_reports(1):
        last_measured = max(last_measured, report["last_event"])

    for check in ledger.tasks.last(generation.retriever, MAX_PAST_CHECKS, TaskKind.DRIFT_CHECK):
        # A drift check is refused if its events contain too few documents to measure.
        found_too_few = check.state == TaskState.REFUSED
        if found_too_few and check.event_range is not None:
            last_measured = max(last_measured, check.event_range.last)
    return last_measured
