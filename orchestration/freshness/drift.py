"""Check drift: compare new documents with old ones, decide, and write the report to the ledger.

A drift check covers the documents that were added since the last drift report. It compares these
documents with the drift reference (module `drift_reference`), which describes the documents that
the retriever was trained with. The policy (module `policy`) then decides the next step. The check
does not train. It only requests a task in the ledger: new weights of a fusion, a pilot (a short
training on a sample) or a retrain.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from model_code.collection.generations.evaluation_segments import with_encodings
from model_code.collection.generations.generation import (
    Generation,
    trained_documents,
)
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.generations.refinements import (
    refinement_statuses,
    solved_documents,
    summarize_refinements,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import Event, LedgerView
from model_code.collection.ledger.tasks import EventRange, Task, TaskKind, TaskState
from model_code.collection.segments.documents import DocumentFile
from model_code.collection.segments.segment import LoadedSegment
from model_code.drift.calibration import MIN_REFERENCE_RATIO
from model_code.drift.descriptions import ASKED_QUERIES, MADE_QUERIES
from model_code.drift.measures import (
    MAX_EXAMPLES,
    DocumentExample,
    OldScores,
    PairedScores,
    crowding,
    lowest_scores,
    no_paired_scores,
    reciprocal_ranks,
    refined_statuses,
)
from model_code.drift.reference import DriftReference, Question
from model_code.drift.report import Arrivals, DriftReport, make_report
from model_code.drift.statuses import Status
from model_code.evaluation.gate_power import GAIN_DEVIATION, Deviations
from model_code.project import Project, file_lock
from model_code.retrieval.fused import FusedRetriever
from model_code.retrieval.protocol import Search
from orchestration import parameters
from orchestration.freshness import drift_page, probes
from orchestration.freshness.check_cache import CheckCache
from orchestration.freshness.drift_reference import (
    MAX_SCORED_ARRIVALS,
    PROTECTED_DEPTH,
    calibration_folder,
    load_calibration,
    load_reference,
    remaining_share,
    score_protected_queries,
)
from orchestration.freshness.judged_pairs import retrain_gate_obstacle, retrain_obstacle
from orchestration.freshness.policy import (
    Action,
    Attempts,
    Decision,
    PastDecision,
    decide,
)
from orchestration.freshness.retune import read_retune_queries
from orchestration.parameters import Parameters

# Name of a lock file in the project's state folder. Without it, two checks at the same time would
# report the same events twice.
LOCK = "drift.lock"
# Number of retunes and retrains that are read from the ledger, newest first.
MAX_PAST_ATTEMPTS = 20


@dataclass(frozen=True)
class PastAttempts:
    """Facts about the retunes and retrains that were carried out since the last training.

    A retune or a retrain is called an attempt, because the gate may refuse its result.

    Attributes:
        last_event: Id of the last event that an attempt covered. Without attempts, it is the last
            event that the training covered.
        last_refused_event: Id of the last event that a refused retrain covered. None if no
            retrain was refused.
        retune_queries: Largest number of judged queries on which a retune chose weights. 0 without
            retunes.
        deviations: For retunes and for retrains, the standard deviations that the gate measured
            last. A kind of task without such a measurement is left out.
    """

    last_event: int
    last_refused_event: int | None
    retune_queries: int
    deviations: Mapping[TaskKind, Deviations]


@dataclass(frozen=True)
class DriftCheck:
    """A drift report and the decision that follows from it.

    Attributes:
        report: The measures of the newest batch, and of the window of the last batches.
        decision: The decision of the policy.
        events: The events of the newest batch, which no earlier report covers.
        page: The report as an HTML page.
    """

    report: DriftReport
    decision: Decision
    events: EventRange
    page: str = ""

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Labels of the measures whose values are beyond their thresholds."""
        return tuple(measure.label for measure in self.report.exceeded)

    @property
    def text(self) -> str:
        """Format every value beside its threshold, and the decision."""
        return self.report.text + self.decision.text

    def as_dict(self) -> dict[str, Any]:
        """Return the report and the decision as values that JSON can hold."""
        return {"report": self.report.to_dict(), "decision": asdict(self.decision)}


def check_drift(project: Project, record: bool = True) -> DriftCheck | None:
    """Measure the documents that were added since the last report, and decide what follows.

    A check may request a pilot, a short training on a sample, or a retrain. Checks of the same
    project wait for each other.

    Args:
        project: The project, whose default retriever is checked.
        record: Whether to write the report to the ledger and to request a pilot or a retrain. False
            is a dry run, which measures even a single document.

    Returns:
        The check. None if fewer than `drift.minimum_batch` documents were added since the last
        report; in a dry run, None only if no document was added.
    """
    with file_lock(project.state / LOCK):
        generation = GenerationStore(project.live, default_retriever(project.live)).current()
        ledger = open_ledger_if_exists(project, generation.retriever)
        if ledger is None:
            return None

        with ledger:
            if record and not _may_be_measured(project, ledger, generation):
                # Opening the index takes long, and is not needed here.
                _close_checks_without_documents(ledger, generation.watermark)
                return None

            searcher = Searcher.open(project.live, generation.retriever)
            check = _measure_and_decide(project, searcher, ledger, dry_run=not record)
            if check is None:
                if record:
                    _close_checks_without_documents(ledger, searcher.generation.watermark)
                return None

            row = _row_of_check(check, ledger.retriever)
            check = replace(check, page=drift_page.page_with_titles(row, searcher))
            if record:
                # The task is written before the report. If this process is killed in between, the
                # next check covers the same events and finds the task.
                _request_task(ledger, check)
                ledger.record_drift_report(check.as_dict(), (check.events.first, check.events.last))
                drift_page.write_drift_files(project, row, check.page)
            return check


def _row_of_check(check: DriftCheck, retriever: str) -> dict[str, Any]:
    """Return a check as a row of the ledger's drift reports.

    The page of a report is made from such a row, and is made before the row is in the ledger.
    """
    return {
        "retriever": retriever,
        "recorded": time.time(),
        "first_event": check.events.first,
        "last_event": check.events.last,
        "report": check.as_dict(),
    }


def _may_be_measured(project: Project, ledger: Ledger, generation: Generation) -> bool:
    """Return whether the newest batch may have enough documents to be measured.

    A batch has at most as many documents as events, so the events in the ledger are counted. The
    index need not be opened for this.
    """
    settings = parameters.load(project.params_file).drift
    trained = ledger.view_at(generation.cursor).cursor.trained
    newest = batches_to_measure(ledger, 0, generation.watermark, trained)[-1]
    return newest.last - newest.first + 1 >= settings.minimum_batch


def _measure_and_decide(
    project: Project, searcher: Searcher, ledger: Ledger, dry_run: bool
) -> DriftCheck | None:
    """Measure the newest batch of documents and the window, and let the policy decide.

    A batch is the documents that arrived between two drift reports. The window is the last batches
    together, in which a slow drift shows. Nothing is written to the ledger.

    Args:
        project: The project.
        searcher: Searcher of the live collection.
        ledger: The ledger, opened for the searcher's retriever.
        dry_run: Whether to measure even a single document.

    Returns:
        The check without its page; None if too few documents arrived.
    """
    settings = parameters.load(project.params_file)
    generation = searcher.generation
    ledger_view = ledger.view_at(generation.cursor)
    *reported, newest = batches_to_measure(
        ledger, settings.drift.window, generation.watermark, ledger_view.cursor.trained
    )

    # The window consists of the newest batch and up to `window - 1` earlier ones.
    max_earlier = settings.drift.window - 1
    earlier = reported[-max_earlier:] if max_earlier > 0 else []
    cache = CheckCache.open(
        calibration_folder(project, searcher, settings), searcher.generation.tuned
    )
    reader = BatchReader(searcher, settings, ledger_view, cache=cache)
    min_documents = 1 if dry_run else settings.drift.minimum_batch
    if reader.count_documents([newest]) < min_documents:
        return None

    reference = load_reference(project, searcher, settings)
    unscored = _reasons_not_to_score(searcher, reference, settings)
    unscored.update(reader.reasons_of_size([*earlier, newest]))
    reader = replace(reader, unscored=unscored)
    newest_arrivals = reader.read_arrivals(newest, MAX_SCORED_ARRIVALS)
    batches = []
    for events in earlier:
        # The earlier batches share one limit on scored documents, so that a long window takes no
        # more time.
        max_scored = ceil(MAX_SCORED_ARRIVALS / len(earlier))
        batches.append(reader.read_arrivals(events, max_scored))
    batches.append(newest_arrivals)

    old_scores = _score_old_documents(searcher, reference, settings, batches, reader)
    calibration = load_calibration(project, searcher, settings, old_scores)
    protected = score_protected_queries(
        searcher, calibration.reference, settings, reader.arrived_answers, cache
    )
    cache.save()
    attempts, changed = read_attempts(project, searcher, ledger, ledger_view)
    report = make_report(calibration, batches, changed, protected)
    report = replace(report, incdsi=reader.describe_incdsi(newest))

    decision = decide(
        report,
        past_decisions(ledger, settings.drift.cooldown),
        settings.drift,
        judgement_obstacle=retrain_obstacle(project, generation),
        dry_run=dry_run,
        attempts=attempts,
    )
    return DriftCheck(report, decision, newest)


def read_attempts(
    project: Project, searcher: Searcher, ledger: Ledger, ledger_view: LedgerView
) -> tuple[Attempts, int]:
    """Return the counts by which the policy decides whether to adapt the retriever again.

    An attempt to adapt it is a retune or a retrain. An attempt whose result the gate refused counts
    as well.

    Args:
        project: The project.
        searcher: Searcher of the live generation.
        ledger: The ledger, opened for the retriever.
        ledger_view: The ledger as of the searcher's generation.

    Returns:
        The counts that the policy needs, and the number of documents that were added or changed
        since the last attempt. Without attempts, it is their number since the last training.
    """
    past = _read_past_attempts(ledger, ledger_view.cursor.trained)
    trained = trained_documents(searcher.generation)
    queries = read_retune_queries(project, searcher)

    changed_since_refusal = None
    if past.last_refused_event is not None:
        changed_since_refusal = _changed_documents(searcher, ledger_view, past.last_refused_event)
    retune_obstacle = queries.obstacle
    if not isinstance(searcher.base.retriever, FusedRetriever):
        retune_obstacle = f"{searcher.generation.retriever} is no fusion"
    attempts = Attempts(
        queries=len(queries.learning.queries),
        queries_before=max(queries.at_build, past.retune_queries, 1),
        retune_obstacle=retune_obstacle,
        changed_since_refusal=changed_since_refusal,
        trained=len(trained),
        retrain_gate_obstacle=retrain_gate_obstacle(
            project, searcher.generation, past.deviations.get(TaskKind.RETRAIN)
        ),
        retune_gate_obstacle=queries.gate_obstacle(
            parameters.load(project.params_file).promotion, past.deviations.get(TaskKind.RETUNE)
        ),
    )
    return attempts, _changed_documents(searcher, ledger_view, past.last_event)


def _read_past_attempts(ledger: Ledger, trained_event: int) -> PastAttempts:
    """Read the retunes and retrains since the last training from the ledger.

    Args:
        ledger: The ledger, opened for the retriever.
        trained_event: Id of the last event that the training covered. Attempts that cover no later
            event are older than the training, and do not count.
    """
    last_event = trained_event
    last_refused_event: int | None = None
    retune_queries = 0
    deviations: dict[TaskKind, Deviations] = {}

    # The newest task comes first.
    tasks = ledger.tasks.last(
        ledger.retriever, MAX_PAST_ATTEMPTS, TaskKind.RETUNE, TaskKind.RETRAIN
    )
    for task in tasks:
        event = _event_of(task)
        was_carried_out = task.state in (TaskState.DONE, TaskState.REFUSED)
        if event is None or not was_carried_out or event <= trained_event:
            continue

        last_event = max(last_event, event)
        # Only the newest deviations of each kind of task are kept.
        if GAIN_DEVIATION in task.details and task.kind not in deviations:
            deviations[task.kind] = Deviations.of_details(task.details)
        if task.kind == TaskKind.RETUNE:
            retune_queries = max(retune_queries, task.details.get("queries", 0))
        elif task.state == TaskState.REFUSED:
            last_refused_event = max(last_refused_event or 0, event)
    return PastAttempts(last_event, last_refused_event, retune_queries, deviations)


def _event_of(task: Task) -> int | None:
    """Return the id of the last event that an attempt covered; None if it is not recorded.

    An attempt is a retrain, or a retune, which only chooses the weights of a fusion again. A retune
    records the event as `last_event`, a retrain as `watermark`. If an attempt recorded neither, the
    range of events for which it was requested is used.
    """
    if "last_event" in task.details:
        event: int = task.details["last_event"]
        return event
    if "watermark" in task.details:
        watermark: int = task.details["watermark"]
        return watermark
    return task.event_range.last if task.event_range is not None else None


def _changed_documents(searcher: Searcher, ledger_view: LedgerView, after: int) -> int:
    """Count the live documents that were added or changed after an event.

    A document whose live version is the one of the training is not counted.
    """
    changed = 0
    for event in ledger_view.arrivals(after + 1, searcher.generation.watermark):
        if event.document_id not in searcher.base_view:
            changed += 1
    return changed


def _request_task(ledger: Ledger, check: DriftCheck) -> None:
    """Request the retune, pilot or retrain that the policy decided on, if any.

    A retune chooses the weights of a fusion again. A pilot trains on a sample of the documents, and
    a retrain on all of them.
    """
    if check.decision.action == Action.RETRAIN:
        kind = TaskKind.RETRAIN
    elif check.decision.action == Action.PILOT:
        kind = TaskKind.PILOT
    elif check.decision.action == Action.RETUNE:
        kind = TaskKind.RETUNE
    else:
        return
    reason = "; ".join(check.decision.reasons)
    ledger.tasks.request(kind, ledger.retriever, check.events, reason, requested_by="drift")


def _close_checks_without_documents(ledger: Ledger, watermark: int) -> None:
    """Close the requested drift checks of a batch that is too small to measure.

    The documents of the batch are measured later, together with the next ones.

    Args:
        ledger: The ledger, opened for the retriever.
        watermark: Id of the last searchable event. Checks whose events end here or earlier are
            closed.
    """
    for task in ledger.tasks.open(ledger.retriever, TaskKind.DRIFT_CHECK):
        if task.event_range is not None and task.event_range.last <= watermark:
            outcome = "fewer than drift.minimum_batch documents arrived"
            ledger.tasks.end(task, TaskState.REFUSED, outcome)


def batches_to_measure(
    ledger: Ledger, window: int, watermark: int, last_trained: int = 0
) -> list[EventRange]:
    """Return the event ranges of the last drift reports and of the newest batch.

    The newest batch consists of the searchable events that no report covers.

    Args:
        ledger: The ledger, opened for the retriever.
        window: The number of earlier reports to return.
        watermark: Id of the last searchable event.
        last_trained: Id of the last event whose document the retriever may have been trained with.
            Events up to this id are not measured.

    Returns:
        Event ranges, oldest first. The last range is the newest batch. It is empty (`last` is
        smaller than `first`) if nothing new is searchable.
    """
    reported: list[EventRange] = []
    # One more report is read, so that `last_reported` is found even if `window` is 0.
    newest_first = ledger.recent_drift_reports(window + 1)
    for report in reversed(newest_first):
        if report["last_event"] > last_trained:
            first = max(report["first_event"], last_trained + 1)
            reported.append(EventRange(first, report["last_event"]))

    last_reported = max(0, last_trained)
    for events in reported:
        last_reported = max(last_reported, events.last)
    unreported = EventRange(last_reported + 1, watermark)
    # With `window` = 0, the slice reported[-0:] would hold all reports.
    earlier = reported[-window:] if window > 0 else []
    return [*earlier, unreported]


def _reasons_not_to_score(
    searcher: Searcher, reference: DriftReference, settings: Parameters
) -> dict[str, str]:
    """Return the kinds of values that are not measured because old documents give no comparison.

    Scores of new documents are compared with scores of old ones by the same kind of queries. If
    there are too few old ones, searching for the new documents would be of no use.

    Vectors are not compared if those of old documents were learned (DSI). Such vectors differ from
    the encodings of new documents even if the texts are alike.

    Returns:
        The reason for each kind of value. The keys are names of attributes of `Arrivals`.
    """
    needed = MIN_REFERENCE_RATIO * settings.drift.minimum_batch
    # `quality` compares scores by pseudo-queries, and `asked` scores by judged queries.
    questions_by_score = {"quality": reference.questions.made, "asked": reference.questions.asked}
    old_documents = searcher.base_view

    reasons = {}
    for score_name, questions in questions_by_score.items():
        asked_documents = {question.document_id for question in questions}
        compared = len([name for name in asked_documents if name in old_documents])
        if compared < needed:
            reasons[score_name] = (
                f"the reference has {compared}, fewer than {MIN_REFERENCE_RATIO} x "
                f"drift.minimum_batch = {needed}"
            )
    dense = searcher.base.retriever.dense
    if dense is not None and dense.learns_documents:
        reasons["vectors"] = "learned document vectors cannot be compared with encodings"
    return reasons


def _score_old_documents(
    searcher: Searcher,
    reference: DriftReference,
    settings: Parameters,
    batches: Sequence[Arrivals],
    reader: BatchReader,
) -> OldScores:
    """Score how well documents that the retriever was trained with are found now.

    The report compares these scores with those of new documents, in two measures: by pseudo-queries
    generated from the texts, and by queries that people asked. Scoring takes a search per query. So
    the scores for a measure are only computed if enough new documents have a score for it.

    Args:
        searcher: Searcher of the live collection.
        reference: The drift reference, which holds the queries.
        settings: All settings of the project.
        batches: The batches that the report covers.
        reader: Reader of the batches, with its cache of query encodings. A document that arrived
            with a query counts as an answer to it.

    Returns:
        The scores of both measures. The scores of a measure that is not computed are empty.
    """
    pseudo_query_scores = [batch.quality for batch in batches]
    made_questions: Sequence[Question] = ()
    if _is_compared(pseudo_query_scores, settings):
        made_questions = reference.questions.made

    arrived_query_scores = [batch.asked for batch in batches]
    asked_questions: Sequence[Question] = ()
    if _is_compared(arrived_query_scores, settings):
        asked_questions = reference.questions.asked

    answers = reader.arrived_answers
    search = reader.cache.queries.cached(searcher.plain_retriever).search
    return OldScores(
        made=probes.old_document_scores(searcher, search, made_questions, answers),
        asked=probes.old_document_scores(searcher, search, asked_questions, answers),
    )


def _is_compared(scores: Sequence[np.ndarray | None], settings: Parameters) -> bool:
    """Return whether enough new documents have a score to compare them with old documents.

    Args:
        scores: Scores of one kind for the new documents of each batch, (n,) each; None for a batch
            without such scores. `drift.minimum_batch` scores are enough.
        settings: All settings of the project.
    """
    scored_documents = sum(len(batch) for batch in scores if batch is not None)
    return scored_documents >= settings.drift.minimum_batch


@dataclass(frozen=True)
class BatchReader:
    """Reads and scores the documents that arrived in a range of events.

    Attributes:
        searcher: Searcher of the live collection.
        settings: All settings of the project.
        ledger_view: The ledger as of the searcher's generation; later events are not visible.
        unscored: The reason for each kind of value that is not measured; see `Arrivals.unscored`.
        cache: Encodings of queries and ranks of former versions, which earlier checks have kept.
        arrivals: Events of the ranges that were read already, by range.
    """

    searcher: Searcher
    settings: Parameters
    ledger_view: LedgerView
    unscored: Mapping[str, str] = field(default_factory=dict)
    cache: CheckCache = field(default_factory=CheckCache)
    arrivals: dict[EventRange, list[Event]] = field(default_factory=dict)

    def count_documents(self, batches: Sequence[EventRange]) -> int:
        """Count the new and changed documents of some event ranges."""
        return sum(len(self._new_arrivals(events)) for events in batches)

    def reasons_of_size(self, batches: Sequence[EventRange]) -> dict[str, str]:
        """Return the kinds of scores that are not measured because there are too few documents.

        Args:
            batches: The event ranges that a report covers.

        Returns:
            The reason for each kind of score. The keys are names of attributes of `Arrivals`.
        """
        new = 0
        changed = 0
        for events in batches:
            for event in self._new_arrivals(events):
                if event.document_id in self._trained:
                    changed += 1
                else:
                    new += 1

        minimum = self.settings.drift.minimum_batch
        limit = f"are fewer than drift.minimum_batch = {minimum}"
        reasons = {}
        if new < minimum:
            reasons["quality"] = f"{new} {limit}"
        if changed < minimum:
            reasons["changed"] = f"{changed} changed documents {limit}"
        return reasons

    def read_arrivals(self, events: EventRange, max_scored: int) -> Arrivals:
        """Read the new and changed documents of an event range, and score how well they are found.

        Documents that were removed or replaced later are left out. Documents whose live version is
        the one that the retriever was trained with are left out as well. New documents are compared
        with old ones, and changed documents with their former versions.

        Args:
            events: The event range.
            max_scored: The largest number of documents to score, for each kind of score. More
                documents are sampled.
        """
        arrivals = self._new_arrivals(events)
        ids = [event.document_id for event in arrivals]
        new = [document_id for document_id in ids if document_id not in self._trained]
        changed = [event for event in arrivals if event.document_id in self._trained]
        vectors, vector_ids, texts = self._read_vectors_and_texts(new)

        quality = None
        if "quality" not in self.unscored:
            quality = self._pseudo_query_scores(texts, max_scored)
        asked = None
        if "asked" not in self.unscored:
            asked = self._arrived_query_scores(arrivals, max_scored)

        statuses = {name: self._statuses[name] for name in ids if name in self._statuses}
        examples = {
            MADE_QUERIES: lowest_scores(quality or {}),
            ASKED_QUERIES: lowest_scores(asked or {}),
            "conflicts": _broken_constraints(statuses),
            "growth": tuple(DocumentExample(name) for name in new[:MAX_EXAMPLES]),
        }
        return Arrivals(
            vectors,
            self.searcher.generation.fingerprint,
            quality=_score_array(quality),
            asked=_score_array(asked),
            statuses=tuple(statuses.values()),
            unscored=self.unscored,
            changed_documents=len(changed),
            changed=self._score_changed(changed, max_scored),
            vector_ids=vector_ids,
            examples=examples,
        )

    def describe_incdsi(self, events: EventRange) -> str:
        """Return how IncDSI changed the ranks of the documents that arrived in an event range.

        Returns:
            Sentences; empty if no vector of these documents was solved.
        """
        document_ids = [event.document_id for event in self._new_arrivals(events)]
        summary = summarize_refinements(self.searcher.generation, document_ids)
        return "" if summary is None else summary.sentence()

    @cached_property
    def arrived_answers(self) -> dict[str, frozenset[str]]:
        """Ids of the live documents that arrived with a query, by the text of the query."""
        return probes.documents_by_query(self.ledger_view.snapshot())

    @cached_property
    def _statuses(self) -> dict[str, str]:
        """Outcome of IncDSI for each document that it treated: name of the `Status` by document id.

        IncDSI solves the vector of a new document, so that known queries find it and older
        documents keep their queries. The status NOT_REFINED says that it left the plain encoding.
        """
        return refinement_statuses(self.searcher.generation)

    @cached_property
    def _trained(self) -> set[str]:
        """Ids of the documents that training has seen, in their present or in a former version."""
        return trained_documents(self.searcher.generation)

    def _new_arrivals(self, events: EventRange) -> list[Event]:
        """Return the events of a range that added or changed a document of the live collection."""
        if events not in self.arrivals:
            self.arrivals[events] = self._read_new_arrivals(events)
        return self.arrivals[events]

    def _read_new_arrivals(self, events: EventRange) -> list[Event]:
        """Read the events of a range from the ledger; see `_new_arrivals`."""
        base = self.searcher.base_view

        arrivals = []
        for event in self.ledger_view.arrivals(events.first, events.last):
            # A trained document can arrive again unchanged, for example after it was deleted. Its
            # live version is then in the base segment, the index of the build.
            is_as_trained = event.document_id in self._trained and event.document_id in base
            if not is_as_trained:
                arrivals.append(event)
        return arrivals

    def _pseudo_query_scores(
        self, texts: Mapping[str, str], max_scored: int
    ) -> dict[str, float] | None:
        """Score documents by pseudo-queries, which are made of spans of their texts.

        Args:
            texts: Texts of the new documents by id.
            max_scored: Largest number of documents to score.

        Returns:
            The score of each document by its id. None if no text is long enough for a query.
        """
        sampled_ids = self._sample_ids(texts, max_scored)
        sample = {document_id: texts[document_id] for document_id in sampled_ids}
        questions = probes.generate_questions(sample, self.settings.drift.seed)
        if not questions:
            return None
        return probes.scores_by_document(self._plain_search, questions)

    def _score_changed(self, arrivals: Sequence[Event], max_scored: int) -> PairedScores:
        """Score changed documents by pseudo-queries of their former and of their present version.

        The former version is searched for in the base segment, the index of the build, which still
        holds it. The present version is searched for in the whole collection. A document counts
        only if both versions are long enough for a pseudo-query. A document that an earlier check
        has scored since it changed keeps its scores, so that only the newest batch is searched.

        Args:
            arrivals: The events that changed the documents.
            max_scored: The largest number of documents to score.

        Returns:
            Reciprocal ranks of the former and the present versions, and the loss to expect from the
            growth of the collection alone.
        """
        if "changed" in self.unscored:
            return no_paired_scores()
        # Both versions are searched, so half as many documents take the same time. The half is used
        # if it is still large enough for a test.
        limit = max_scored
        if max_scored // 2 >= self.settings.drift.minimum_batch:
            limit = max_scored // 2

        # Scores are kept by document and content. Another ledger, such as a repaired one, numbers
        # its events again.
        keys = {
            event.document_id: f"{event.content_hash} {event.document_id}" for event in arrivals
        }
        kept = self.cache.changed_scores
        scored = [document_id for document_id, key in keys.items() if key in kept]
        # The scores that earlier checks kept suffice if they are half of a full sample.
        full_sample = min(limit, len(keys))
        if len(scored) < full_sample // 2:
            self._search_changed(keys, self._sample_ids(keys, limit))
            scored = [document_id for document_id, key in keys.items() if key in kept]

        sample = self._sample_ids(scored, limit)
        if not sample:
            return no_paired_scores()
        # One row per document: the scores before and after, and the loss by growth.
        rows = [kept[keys[document_id]] for document_id in sample]
        before, after, crowding_loss = np.array(rows, np.float64).T
        return PairedScores(before, after, crowding_loss, tuple(sample))

    def _search_changed(self, keys: Mapping[str, str], sample: Sequence[str]) -> None:
        """Search both versions of changed documents, and keep their scores.

        Args:
            keys: Key of each changed document in `CheckCache.changed_scores`, by document id.
            sample: Ids of the documents to search.
        """
        seed = self.settings.drift.seed
        former_texts = _read_texts(self.searcher.base.documents, sample)
        present_texts: dict[str, str] = {}
        for segment, ids in self._ids_by_segment(sample):
            present_texts.update(_read_texts(segment.documents, ids))
        former = probes.generate_lasting_questions(former_texts, seed)
        present = probes.generate_lasting_questions(present_texts, seed)
        # A text that is too short for a query has no question, so its document is not compared.
        compared = sorted(former.keys() & present.keys())
        if not compared:
            return

        # Queries of both versions are encoded together, because larger batches take less time.
        texts = [present[document_id].text for document_id in compared]
        for document_id in compared:
            if document_id not in self.cache.former_ranks:
                texts.append(former[document_id].text)
        self.cache.queries.encode(self.searcher.plain_retriever, texts)

        ranks_before = self._former_ranks([former[document_id] for document_id in compared])
        ranks_now = probes.first_ranks(
            self._plain_search, [present[document_id] for document_id in compared]
        )
        before = reciprocal_ranks(ranks_before).tolist()
        after = reciprocal_ranks(ranks_now).tolist()
        share = remaining_share(self.searcher, len(self._trained))
        losses = crowding(ranks_before, share).tolist()
        for i, document_id in enumerate(compared):
            self.cache.changed_scores[keys[document_id]] = (before[i], after[i], losses[i])

    def _former_ranks(self, questions: Sequence[Question]) -> np.ndarray:
        """Return the ranks at which the base segment finds former versions of documents.

        The base segment holds the documents as they were at the training. It never changes, so a
        rank is found once and kept. Words of known queries do not count, as for present versions.

        Args:
            questions: q questions, one for each changed document.

        Returns:
            Ranks from 1, (q,) int64; 0 if the document is not found.
        """
        ranks = self.cache.former_ranks
        missing = [question for question in questions if question.document_id not in ranks]
        plain = self.searcher.base.retriever.without_known_words()
        search = self.cache.queries.cached(plain).search
        found = probes.first_ranks(search, missing, PROTECTED_DEPTH)
        for question, rank in zip(missing, found.tolist(), strict=True):
            ranks[question.document_id] = rank
        return np.array([ranks[question.document_id] for question in questions], np.int64)

    @cached_property
    def _plain_search(self) -> Search:
        """Search of the live collection without words of queries that documents answer.

        Documents can be indexed with words of queries that they are known to answer. With these
        words, scores by the same queries would be too good.
        """
        return self.cache.queries.cached(self.searcher.plain_retriever).search

    def _arrived_query_scores(
        self, arrivals: Sequence[Event], max_scored: int
    ) -> dict[str, float] | None:
        """Score documents by the queries that they arrived with.

        Every document that arrived with a query counts as an answer to this query.

        The score must tell how well other documents of this kind are found. A vector that IncDSI
        solved for the arrived queries does not tell this, so these documents are searched by their
        plain encodings instead. The rank that the solver recorded is not used either: the
        collection was smaller then, and the solver ignores late interaction. In an index of learned
        vectors (DSI), such a document has no plain encoding and is left out.

        Returns:
            The score of each document by its id. None if no document has a query to score.
        """
        queries: dict[str, Sequence[str]] = {}
        for event in arrivals:
            arrived_queries = (event.payload or {}).get("queries", ())
            if arrived_queries and not self._was_solved_in_dsi_index(event.document_id):
                queries[event.document_id] = arrived_queries

        questions = []
        sample = self._sample_ids(queries, max_scored)
        for document_id in sample:
            for query in queries[document_id]:
                questions.append(Question(document_id, query, self.arrived_answers[query]))
        if not questions:
            return None

        # Search the collection with plain encodings in place of the solved vectors.
        segments = [view.searchable for view in self.searcher.views]
        solved_ids = [document_id for document_id in sample if document_id in self._solved_ids]
        with TemporaryDirectory() as folder:
            encoded = with_encodings(self.searcher, segments, solved_ids, Path(folder))
            retriever = type(self.searcher.base.retriever).join_segments(encoded)
            plain = self.cache.queries.cached(retriever.without_known_words())
            return probes.scores_by_document(plain.search, questions)

    @cached_property
    def _solved_ids(self) -> frozenset[str]:
        """Ids of the documents whose vectors IncDSI solved in a fusion with a dense component.

        IncDSI solves the vector of a new document so that the queries that it arrived with find it.
        Such a document also has a plain encoding, unlike one of a DSI index of learned vectors.
        """
        solved = solved_documents(self.searcher.generation)
        return frozenset(document.document_id for document in solved)

    def _was_solved_in_dsi_index(self, document_id: str) -> bool:
        """Return whether IncDSI solved the vector of a document in a DSI index.

        IncDSI computes vectors of new documents from their queries, in two kinds of retrievers:

        - A fusion also has the document's plain encoding. The result is False.
        - A DSI index has no plain encodings of documents. The result is True, unless the document
          has several passages, whose vectors IncDSI leaves as they are.
        """
        if document_id in self._solved_ids:
            return False
        status = self._statuses.get(document_id)
        if status is None:
            return False
        was_solved = bool(refined_statuses([status]))
        return was_solved

    def _sample_ids(self, document_ids: Iterable[str], limit: int) -> list[str]:
        """Sample at most `limit` ids, and no more than a report uses: each id costs a search."""
        drift = self.settings.drift
        return probes.sample_texts(document_ids, min(limit, drift.largest_batch), drift.seed)

    def _read_vectors_and_texts(
        self, document_ids: Sequence[str]
    ) -> tuple[np.ndarray, tuple[str, ...], dict[str, str]]:
        """Read the first passage vectors (m, H), the ids of their documents, and the texts.

        The vectors and ids are in the order of the segments. The texts are sorted by document id.
        """
        segments = self._ids_by_segment(document_ids)
        # If no segment contains any of the documents, one segment is still read, so that the empty
        # array has H columns. The last segment is taken because it is small.
        with_documents = [(segment, ids) for segment, ids in segments if ids]
        if not with_documents:
            with_documents = segments[-1:]

        texts: dict[str, str] = {}
        vectors = []
        vector_ids: list[str] = []
        for segment, ids_in_segment in with_documents:
            vectors.append(probes.first_passage_vectors(segment, ids_in_segment))
            vector_ids.extend(ids_in_segment)
            texts.update(_read_texts(segment.documents, ids_in_segment))
        return np.concatenate(vectors), tuple(vector_ids), dict(sorted(texts.items()))

    def _ids_by_segment(self, document_ids: Sequence[str]) -> list[tuple[LoadedSegment, list[str]]]:
        """Return every segment, each with those of the given documents that are live in it.

        A segment is a folder of indexed documents. Several segments may hold versions of a
        document, but it is live in only one of them.
        """
        segments = []
        for view in self.searcher.views:
            live_ids = [document_id for document_id in document_ids if document_id in view]
            segments.append((view.segment, live_ids))
        return segments


def _score_array(scores: Mapping[str, float] | None) -> np.ndarray | None:
    """Return scores as an array, (n,) float32; None if there are none."""
    if scores is None:
        return None
    return np.array(list(scores.values()), np.float32)


def _broken_constraints(statuses: Mapping[str, str]) -> tuple[DocumentExample, ...]:
    """Return refined documents that break a constraint, as examples.

    The vector of a refined document was solved by IncDSI. A constraint is a query of an older
    document for which the solved document must not rank higher.

    Args:
        statuses: Name of the `Status`, the outcome of the solver, by document id.
    """
    examples = []
    for document_id, status in sorted(statuses.items()):
        is_refined = bool(refined_statuses([status]))
        if is_refined and status.upper() != Status.FITS.name:
            examples.append(DocumentExample(document_id, note=Status[status.upper()].value))
    return tuple(examples[:MAX_EXAMPLES])


def _read_texts(documents: Path, document_ids: Sequence[str]) -> dict[str, str]:
    """Read the texts of the given documents from a documents file, by document id."""
    rows = DocumentFile(documents).read(document_ids, ["text"])
    return {document_id: row["text"] for document_id, row in rows.items()}


def past_decisions(ledger: Ledger, batches: int) -> list[PastDecision]:
    """Read the decisions of the last drift checks, and the outcomes of retrains, from the ledger.

    A batch is the documents between two drift checks. The order of decisions matters: after a
    retrain, no other one starts for some batches (the cooldown). A retrain that was carried out is
    ordered by the time when it ended, so it follows the batches that were measured until then. Any
    other retrain takes the place of the drift report that requested it, directly or by a pilot. A
    retrain that a person started counts only if it was promoted.

    Args:
        ledger: The ledger, opened for the retriever.
        batches: The number of reports to go back.

    Returns:
        One entry per decision, oldest first.
    """
    # The decisions and their times. The key is the event range that a decision covers, or the task
    # id for a retrain that a person started.
    decisions: dict[EventRange | str, PastDecision] = {}
    times: dict[EventRange | str, float] = {}

    for row in ledger.recent_drift_reports(batches):
        events = EventRange(row["first_event"], row["last_event"])
        decisions[events] = PastDecision(Action(row["report"]["decision"]["action"]))
        times[events] = row["recorded"]

    for task in ledger.tasks.last(ledger.retriever, batches + 1, TaskKind.RETRAIN):
        is_manual = task.event_range is None
        if is_manual and task.state != TaskState.DONE:
            continue

        # The retrain takes the place of the decision that requested it.
        key = task.event_range or task.id
        replaced_decision = decisions.get(key)
        was_carried_out = task.state in (TaskState.DONE, TaskState.REFUSED)
        decisions[key] = PastDecision(
            Action.RETRAIN,
            carried_out=was_carried_out,
            is_open=task.state == TaskState.OPEN,
            after_pilot=_includes_pilot(replaced_decision),
        )
        times[key] = task.requested
        if was_carried_out and task.ended is not None:
            times[key] = task.ended

    oldest_first = sorted(decisions, key=times.__getitem__)
    return [decisions[key] for key in oldest_first]


def _includes_pilot(decision: PastDecision | None) -> bool:
    """Return whether a decision was a pilot, or a retrain that followed from one.

    A pilot is a short training on a sample, which shows whether a retrain would help.
    """
    if decision is None:
        return False
    return decision.action == Action.PILOT or decision.after_pilot
