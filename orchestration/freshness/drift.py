"""Measure what was added since the last report, decide what it calls for, and keep both in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.drift.ladder import Decision, Past, decide
from model_code.drift.measures import refined
from model_code.drift.reference import Question
from model_code.drift.report import Arrivals, Report, make_report
from model_code.ledger.work import EventRange, WorkKind, WorkState
from model_code.live.documents import DocumentFile
from model_code.live.generation import added_since_training, trained_documents
from model_code.live.searcher import Searcher
from orchestration import parameters
from orchestration.freshness.queries import (
    answers,
    asked_scores,
    document_vectors,
    made_questions,
    some,
)
from orchestration.freshness.reference import calibration_of, protected_scores
from orchestration.live.collection import additions_folder
from orchestration.live.ledger import existing_ledger, standing_of
from orchestration.parameters import Parameters
from orchestration.project import Project, file_lock

if TYPE_CHECKING:
    from model_code.ledger.events import Event
    from model_code.ledger.ledger import Ledger
    from model_code.ledger.states import LogView

LOCK = "drift.lock"  # in the project's state: two that measure at once would report the same events twice


def batches(ledger: Ledger, window: int, watermark: int, trained: int = 0) -> list[EventRange]:
    """The batches of the last `window` reports, oldest first, and what came after them up to the event `watermark`.

    trained: the last event whose document the retriever may have been trained with; none up to it is an arrival.
    """
    reports = [report for report in reversed(ledger.last_drift(window + 1)) if report["last_event"] > trained]
    known = [EventRange(max(report["first_event"], trained + 1), report["last_event"]) for report in reports]
    return [*known[-window:], EventRange(max([0, trained, *(batch.last for batch in known)]) + 1, watermark)]


@dataclass(frozen=True)
class Gatherer:
    """Reads batches of a live collection."""

    project: Project
    searcher: Searcher
    settings: Parameters
    seen: LogView

    def arrivals(self, batch: EventRange) -> Arrivals:
        """The documents of a batch that were new or other than before, and are still live as they arrived then, each in
        the order of its event."""
        events = self.seen.arrivals(batch.first, batch.last)
        trained, base = trained_documents(self.searcher.generation), self.searcher.views[0]
        found = [one for one in events if not (one.document_id in trained and one.document_id in base)]  # as it was
        put = [one.document_id for one in found]
        vectors, texts = self._vectors_and_texts(put)
        return Arrivals(
            vectors,
            self.searcher.generation.fingerprint,
            quality=self._scores(texts),
            asked=self._asked_scores(found),
            statuses=tuple(self._statuses[one] for one in put if one in self._statuses),
        )

    @cached_property
    def _statuses(self) -> dict[str, str]:
        """The name of the IncDSI `Status` of each document that was added by refinement."""
        from model_code.additions.store import statuses

        return statuses(additions_folder(self.project), self.searcher.generation, self.settings.additions.spans)

    def _scores(self, texts: dict[str, str]) -> np.ndarray | None:
        measured = {document_id: texts[document_id] for document_id in self._measured(texts)}
        return self._found(made_questions(measured, self.settings.drift.seed) if measured else [])

    def _found(self, questions: Sequence[Question]) -> np.ndarray | None:
        """How well the documents that questions are about are found; None without any."""
        scores = asked_scores(self.searcher, questions) if questions else None
        return np.array(list(scores.values()), np.float32) if scores else None

    def _asked_scores(self, events: Sequence[Event]) -> np.ndarray | None:
        """By the queries that documents arrived with, each answered by all that came with it, as judged queries are;
        none of those that these very queries placed."""
        placed = {id_ for id_, status in self._statuses.items() if refined([status])}
        others = (event for event in events if event.document_id not in placed)
        given = {event.document_id: (event.payload or {}).get("queries", ()) for event in others}
        measured = self._measured(document_id for document_id, queries in given.items() if queries)
        questions = [
            Question(document_id, query, self.answers[query])
            for document_id in measured
            for query in given[document_id]
        ]
        return self._found(questions)

    @cached_property
    def answers(self) -> dict[str, frozenset[str]]:
        """The live documents, by a query that they came with."""
        return answers(self.seen.snapshot())

    def _measured(self, document_ids: Iterable[str]) -> list[str]:
        """As many of the documents as a report looks at: to search for the others would be for nothing."""
        return some(document_ids, self.settings.drift.largest_batch, self.settings.drift.seed)

    def _vectors_and_texts(self, document_ids: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
        width = document_vectors(self.searcher.base, self.searcher.base.rows.document_ids[:1]).shape[1]
        vectors: list[np.ndarray] = [np.zeros((0, width), np.float32)]
        texts: dict[str, Any] = {}
        for view in self.searcher.views:
            inside = [document_id for document_id in document_ids if document_id in view]
            if inside:
                vectors.append(document_vectors(view.part, inside))
                rows = DocumentFile(view.part.documents).read(inside)
                texts |= {document_id: row["text"] for document_id, row in rows.items()}
        return np.concatenate(vectors), dict(sorted(texts.items()))


@dataclass(frozen=True)
class Watched:
    """A report and what it calls for; `batch`: the events that are new since the report before."""

    report: Report
    decision: Decision
    batch: EventRange

    @property
    def tripped(self) -> tuple[str, ...]:
        """The measures beyond their thresholds."""
        return tuple(measure.label for measure in self.report.tripped)

    @property
    def text(self) -> str:
        """Every value beside its threshold, and the decision."""
        return self.report.text + self.decision.text

    def as_dict(self) -> dict[str, Any]:
        """Report and decision as plain values."""
        return {"report": self.report.as_dict(), "decision": self.decision.as_dict()}


def watch(project: Project, record: bool = True) -> Watched | None:
    """Measure, decide, keep both; None if fewer than `drift.minimum_batch` documents were added since the last report.

    record=False: a dry run, kept nowhere, of however few documents. Others that watch at the same time wait.
    """
    with file_lock(project.state / LOCK):
        return _watch(project, record)


def _watch(project: Project, record: bool) -> Watched | None:
    settings, searcher = parameters.load(project.params_file), Searcher.open(project.live)
    ledger = existing_ledger(project, searcher.generation.retriever)
    if ledger is None:
        return None
    with ledger:
        watched = _measured(project, searcher, settings, ledger, record)
        if record and watched is not None:
            _ask(ledger, watched)
            ledger.record_drift(watched.as_dict(), (watched.batch.first, watched.batch.last))
        return watched


def _measured(
    project: Project, searcher: Searcher, settings: Parameters, ledger: Ledger, record: bool
) -> Watched | None:
    generation, chosen = searcher.generation, settings.drift
    seen = ledger.seen_from(standing_of(ledger, generation))
    *earlier, newest = batches(ledger, chosen.window, generation.watermark, seen.standing.trained)
    gatherer = Gatherer(project, searcher, settings, seen)
    arrived = gatherer.arrivals(newest)
    if len(arrived.vectors) < (chosen.minimum_batch if record else 1):
        return None
    arrivals = [*map(gatherer.arrivals, earlier), arrived]
    calibration = calibration_of(project, searcher, settings, arrivals, gatherer.answers)
    protected = protected_scores(searcher, calibration.reference, gatherer.answers)
    report = make_report(calibration, arrivals, len(added_since_training(generation)), protected)
    decision = decide(report, past(ledger, chosen.cooldown), chosen, dry_run=not record)
    return Watched(report, decision, newest)


def _ask(ledger: Ledger, watched: Watched) -> None:
    """Ask for what the report calls for. Before the report is kept: a kill in between is followed by another one."""
    decision, reason = watched.decision, "; ".join(watched.decision.reasons)
    if decision.action == "retrain":
        ledger.work.ask(WorkKind.RETRAIN, ledger.retriever, watched.batch, reason, asked_by="drift")
    elif decision.pilot:
        ledger.work.ask(WorkKind.PILOT, ledger.retriever, watched.batch, reason, asked_by="drift")


def past(ledger: Ledger, batches: int) -> list[Past]:
    """What was decided for the last `batches` batches, and what retrains came to, oldest first, as the cooldown counts.

    A retrain stands where it took effect: behind the batches that were measured until then. One that a pilot asked for
    takes the place of the report that called for the pilot.
    """
    entries: dict[EventRange | str, tuple[float, Past]] = {}
    for row in ledger.last_drift(batches):
        decision = row["report"]["decision"]
        made = Past(decision["action"], decision["action"] == "add", pilot=decision.get("pilot", False))
        entries[EventRange(row["first_event"], row["last_event"])] = row["recorded"], made
    for work in ledger.work.last(ledger.retriever, batches + 1, WorkKind.RETRAIN):
        ended = work.state in (WorkState.DONE, WorkState.REFUSED)
        if work.about is None and work.state != WorkState.DONE:
            continue  # a person's, and nothing changed
        _, called = entries.get(work.about or work.id, (0.0, None))
        step = Past(
            "retrain", carried_out=ended, waits=work.state == WorkState.OPEN, pilot=bool(called and called.pilot)
        )
        entries[work.about or work.id] = (work.ended or work.asked) if ended else work.asked, step
    return [step for _, step in sorted(entries.values(), key=itemgetter(0))]
