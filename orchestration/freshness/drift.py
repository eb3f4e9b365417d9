"""Measure what was added since the last report, decide what it calls for, and keep both in the
ledger.

What is new is compared with the drift reference of the live build: made from its base when it is
first asked for, and kept with its calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from model_code.collection.generations.generation import (
    added_since_training,
    trained_documents,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import Event, LedgerView
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.collection.segments.documents import DocumentFile
from model_code.drift.measures import (
    refined_statuses,
)
from model_code.drift.reference import Question
from model_code.drift.report import Arrivals, DriftReport, make_report
from model_code.incdsi.store import statuses
from model_code.project import Project, file_lock
from orchestration import parameters
from orchestration.freshness import probes
from orchestration.freshness.drift_reference import calibration_of, protected_scores
from orchestration.freshness.policy import Decision, PastDecision, decide
from orchestration.freshness.snapshot import gate_has_no_queries
from orchestration.parameters import Parameters
from orchestration.registry.gate import NO_JUDGED_QUERIES

# in the project's state: two that measure at once would report the same events twice
LOCK = "drift.lock"


def batches(ledger: Ledger, window: int, watermark: int, trained: int = 0) -> list[EventRange]:
    """The batches of the last `window` reports, oldest first, and what came after them up to the
    event `watermark`.

    trained: the last event whose document the retriever may have been trained with; none up to it
    is an arrival.
    """
    reports = [
        report
        for report in reversed(ledger.recent_drift_reports(window + 1))
        if report["last_event"] > trained
    ]
    reported = [
        EventRange(max(report["first_event"], trained + 1), report["last_event"])
        for report in reports
    ]
    return [
        *reported[-window:],
        EventRange(max([0, trained, *(batch.last for batch in reported)]) + 1, watermark),
    ]


@dataclass(frozen=True)
class BatchReader:
    """Reads batches of a live collection."""

    searcher: Searcher
    settings: Parameters
    ledger_view: LedgerView

    def arrivals(self, batch: EventRange) -> Arrivals:
        """The documents of a batch that were new or other than before, and are still live as they
        arrived then, each in the order of its event.
        """
        trained, base = trained_documents(self.searcher.generation), self.searcher.views[0]
        arrivals = self.ledger_view.arrivals(batch.first, batch.last)
        events = [
            each
            for each in arrivals
            if not (each.document_id in trained and each.document_id in base)
        ]
        ids = [event.document_id for event in events]
        vectors, texts = self._vectors_and_texts(ids)
        return Arrivals(
            vectors,
            self.searcher.generation.fingerprint,
            quality=self._scores(texts),
            asked=self._asked_scores(events),
            statuses=tuple(self._statuses[id_] for id_ in ids if id_ in self._statuses),
        )

    @cached_property
    def _statuses(self) -> dict[str, str]:
        """The name of the IncDSI `Status` of each document that was added by refinement."""
        return statuses(self.searcher.generation)

    def _scores(self, texts: dict[str, str]) -> np.ndarray | None:
        measured = {document_id: texts[document_id] for document_id in self._measured(texts)}
        return self._retrieval_scores(probes.generate_questions(measured, self.settings.drift.seed))

    def _retrieval_scores(self, questions: Sequence[Question]) -> np.ndarray | None:
        """The scores of the documents that questions are about; None without any."""
        return probes.document_scores(self.searcher, questions) if questions else None

    def _asked_scores(self, events: Sequence[Event]) -> np.ndarray | None:
        """By the queries that documents arrived with, each answered by all that came with it, as
        judged queries are; none of those that these very queries placed.
        """
        placed = {id_ for id_, status in self._statuses.items() if refined_statuses([status])}
        others = (event for event in events if event.document_id not in placed)
        query_texts = {
            event.document_id: (event.payload or {}).get("queries", ()) for event in others
        }
        measured = self._measured(
            document_id for document_id, texts in query_texts.items() if texts
        )
        questions = [
            Question(document_id, query, self.answers[query])
            for document_id in measured
            for query in query_texts[document_id]
        ]
        return self._retrieval_scores(questions)

    @cached_property
    def answers(self) -> dict[str, frozenset[str]]:
        """The live documents, by a query that they came with."""
        return probes.documents_by_query(self.ledger_view.snapshot())

    def _measured(self, document_ids: Iterable[str]) -> list[str]:
        """As many of the documents as a report looks at: to search for the others would be for
        nothing.
        """
        return probes.sample_texts(
            document_ids, self.settings.drift.largest_batch, self.settings.drift.seed
        )

    def _vectors_and_texts(self, document_ids: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
        shares = [
            (view.segment, [one for one in document_ids if one in view])
            for view in self.searcher.views
        ]
        # the last one, which is small, has the width
        shares = [share for share in shares if share[1]] or shares[-1:]
        texts: dict[str, Any] = {}
        for part, inside in shares:
            texts |= {
                one: row["text"] for one, row in DocumentFile(part.documents).read(inside).items()
            }
        vectors = [probes.document_vectors(part, inside) for part, inside in shares]
        return np.concatenate(vectors), dict(sorted(texts.items()))


@dataclass(frozen=True)
class DriftCheck:
    """A report and what it calls for; `batch`: the events that are new since the report before."""

    report: DriftReport
    decision: Decision
    batch: EventRange

    @property
    def exceeded(self) -> tuple[str, ...]:
        """The measures beyond their thresholds."""
        return tuple(measure.label for measure in self.report.exceeded)

    @property
    def text(self) -> str:
        """Every value beside its threshold, and the decision."""
        return self.report.text + self.decision.text

    def as_dict(self) -> dict[str, Any]:
        """DriftReport and decision as plain values."""
        return {"report": self.report.to_dict(), "decision": asdict(self.decision)}


def check_drift(project: Project, record: bool = True) -> DriftCheck | None:
    """Measure, decide, keep both; None if fewer than `drift.minimum_batch` documents were added
    since the last report.

    record=False: a dry run, kept nowhere, of however few documents. Others that measure at the same
    time wait.
    """
    with file_lock(project.state / LOCK):
        settings, searcher = parameters.load(project.params_file), Searcher.open(project.live)
        ledger = open_ledger_if_exists(project, searcher.generation.retriever)
        if ledger is None:
            return None
        with ledger:
            watched = _measured(project, searcher, settings, ledger, record)
            if record and watched is not None:
                _ask(ledger, watched)
                ledger.record_drift_report(
                    watched.as_dict(), (watched.batch.first, watched.batch.last)
                )
            elif record:
                _refuse_looks(ledger, searcher.generation.watermark)
            return watched


def _measured(
    project: Project, searcher: Searcher, settings: Parameters, ledger: Ledger, record: bool
) -> DriftCheck | None:
    generation, chosen = searcher.generation, settings.drift
    ledger_view = ledger.view_at(generation.cursor)
    *earlier, newest = batches(
        ledger, chosen.window, generation.watermark, ledger_view.cursor.trained
    )
    gatherer = BatchReader(searcher, settings, ledger_view)
    arrived = gatherer.arrivals(newest)
    if len(arrived.vectors) < (chosen.minimum_batch if record else 1):
        return None
    arrivals = [*map(gatherer.arrivals, earlier), arrived]
    calibration = calibration_of(project, searcher, settings, arrivals, gatherer.answers)
    protected = protected_scores(searcher, calibration.reference, gatherer.answers)
    report = make_report(calibration, arrivals, len(added_since_training(generation)), protected)
    decision = decide(report, past_decisions(ledger, chosen.cooldown), chosen, dry_run=not record)
    if decision.action == "retrain" and gate_has_no_queries(project, generation):
        decision = decision.held_back(NO_JUDGED_QUERIES)
    return DriftCheck(report, decision, newest)


def _ask(ledger: Ledger, watched: DriftCheck) -> None:
    """Ask for what the report calls for. Before the report is kept: a kill in between is followed
    by another one.
    """
    decision, reason = watched.decision, "; ".join(watched.decision.reasons)
    if decision.action == "retrain":
        ledger.tasks.request(
            TaskKind.RETRAIN, ledger.retriever, watched.batch, reason, requested_by="drift"
        )
    elif decision.pilot:
        ledger.tasks.request(
            TaskKind.PILOT, ledger.retriever, watched.batch, reason, requested_by="drift"
        )


def _refuse_looks(ledger: Ledger, watermark: int) -> None:
    """End what was asked for about events up to `watermark`; what arrives later is asked about
    anew.
    """
    for look in ledger.tasks.open(ledger.retriever, TaskKind.DRIFT_CHECK):
        if look.event_range and look.event_range.last <= watermark:
            ledger.tasks.end(
                look, TaskState.REFUSED, "fewer than drift.minimum_batch documents arrived"
            )


def past_decisions(ledger: Ledger, batches: int) -> list[PastDecision]:
    """What was decided for the last `batches` batches, and what retrains came to, oldest first, as
    the cooldown counts.

    A retrain stands where it took effect: behind the batches that were measured until then. One
    that a pilot asked for takes the place of the report that called for the pilot.
    """
    entries: dict[EventRange | str, tuple[float, PastDecision]] = {}
    for row in ledger.recent_drift_reports(batches):
        decision = row["report"]["decision"]
        made = PastDecision(
            decision["action"], decision["action"] == "add", pilot=decision.get("pilot", False)
        )
        entries[EventRange(row["first_event"], row["last_event"])] = row["recorded"], made
    for work in ledger.tasks.last(ledger.retriever, batches + 1, TaskKind.RETRAIN):
        ended = work.state in (TaskState.DONE, TaskState.REFUSED)
        if work.event_range is None and work.state != TaskState.DONE:
            continue  # a person's, and nothing changed
        _, called = entries.get(work.event_range or work.id, (0.0, None))
        step = PastDecision(
            "retrain",
            carried_out=ended,
            waits=work.state == TaskState.OPEN,
            pilot=bool(called and called.pilot),
        )
        entries[work.event_range or work.id] = (
            (work.ended or work.requested) if ended else work.requested,
            step,
        )
    return [step for _, step in sorted(entries.values(), key=itemgetter(0))]
