"""Measure what was added since the last report, decide what it calls for, and keep both in the
ledger.

What is new is compared with the drift reference of the live build: made from its base when it is
first asked for, and kept with its calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.generations.generation import (
    Generation,
    added_since_training,
    trained_documents,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger_if_exists, standing_of
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.states import Event, LogView
from model_code.collection.ledger.tasks import EventRange, WorkKind, WorkState
from model_code.collection.segments.documents import DOCUMENTS, DocumentFile, read_columns
from model_code.collection.segments.segment import unit
from model_code.drift.calibration import MIN_REFERENCE_RATIO, Calibration
from model_code.drift.ladder import Decision, PastDecision, decide
from model_code.drift.measures import (
    OldScores,
    PairedScores,
    crowding,
    reciprocal_ranks,
    refined_statuses,
)
from model_code.drift.reference import FORMAT, DriftReference, Question, Questions
from model_code.drift.report import Arrivals, DriftReport, make_report
from model_code.files import MANIFEST, canonical_json, hash_text
from model_code.incdsi.store import statuses
from model_code.project import Project, file_lock
from orchestration import parameters
from orchestration.freshness import queries
from orchestration.freshness.workspace import is_unjudged
from orchestration.parameters import Parameters
from orchestration.registry.gate import UNPROVEN

# old documents whose queries every report searches, as the measure of what new ones should reach
SCORED = 600
PROTECTED = 300  # queries, searched again for every report
# in the project's state: two that measure at once would report the same events twice
LOCK = "drift.lock"
# of both searches: what a growing collection costs depends on ranks beyond those that count, too
DEPTH = 100


def calibration_of(
    project: Project,
    searcher: Searcher,
    settings: Parameters,
    arrivals: Sequence[Arrivals],
    arrived: Mapping[str, frozenset[str]],
) -> Calibration:
    """The calibration of the live build for a report on `arrivals`, from `.freshet/drift`; that
    folder may be deleted at any time.

    With scores of old documents only where the arrivals have them, as these take a while. arrived:
    see `old_scores`.
    """
    folder = _folder(project, searcher, settings)
    path = folder / "reference"
    if not (path / MANIFEST).is_file():
        build_reference(project, searcher, settings).save(path)
    reference = DriftReference.load(path)
    made_scores, asked_scores = (
        [batch.quality for batch in arrivals],
        [batch.asked for batch in arrivals],
    )
    scores = OldScores(
        queries.old_scores(
            searcher, reference.questions.made if _enough(settings, made_scores) else (), arrived
        ),
        queries.old_scores(
            searcher, reference.questions.asked if _enough(settings, asked_scores) else (), arrived
        ),
    )
    return Calibration(reference, settings.drift, folder / "nulls", scores)


def build_reference(project: Project, searcher: Searcher, settings: Parameters) -> DriftReference:
    """A reference of documents that the retriever was trained with."""
    base, chosen = searcher.base, settings.drift
    documents, note = reference_documents(
        project, searcher.generation, MIN_REFERENCE_RATIO * chosen.largest_batch
    )
    # its first passage
    first = [rows[0] for document, rows in base.rows.places.items() if document in documents]
    reference = DriftReference.build(
        base.retriever.passage_vectors(base.rows.document_ids),
        searcher.generation.fingerprint,
        chosen,
        np.array(first, np.int64),
        trained=len(trained_documents(searcher.generation)),
        questions=Questions(
            tuple(_made_questions(searcher, settings, documents)),
            tuple(_judged_questions(project, searcher, settings)),
            tuple(protected_queries(project, searcher, chosen.seed)),
        ),
        note=note,
    )
    return replace(reference, vectors=unit(reference.vectors))


def _enough(settings: Parameters, scores: Sequence[np.ndarray | None]) -> bool:
    """Whether there are scores of so many new documents that a report compares them with those of
    old ones.
    """
    return sum(len(each) for each in scores if each is not None) >= settings.drift.minimum_batch


def _folder(project: Project, searcher: Searcher, settings: Parameters) -> Path:
    """One folder per build and settings: the base never changes under its number and fingerprint.

    A reference that was made while the corpus's queries were not there is no reference for later:
    it protects none.
    """
    generation = searcher.generation
    facts = {
        "base": generation.base,
        "fingerprint": generation.fingerprint,
        "settings": repr(settings.drift),
    }
    facts |= {"format": FORMAT, "judged": queries.has_queries(project.artifacts)}
    return (
        project.state / "drift" / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}"
    )


def reference_documents(
    project: Project, generation: Generation, least: int
) -> tuple[set[str], str]:
    """The documents that new ones are compared with, and a note.

    Those that the retriever was trained with and that no training query asked for, as training
    moves those; all that it was trained with where the others are fewer than `least`, which the
    note then says. A baseline was not trained.
    """
    trained = trained_documents(generation)
    if generation.retriever in parameters.BASELINES:
        return trained, ""
    untouched = trained & not_asked_in_training(project.artifacts)
    if len(untouched) >= least:
        return untouched, ""
    return trained, (
        f"also documents that training queries ask for: {len(untouched)} of {len(trained)} are asked for by none, and "
        f"{least} are wanted (three times a batch)"
    )


def not_asked_in_training(artifacts: Path) -> set[str]:
    """The corpus's documents that no judged or made query of the split train asks for; none without
    a corpus.
    """
    corpus, made = artifacts / "corpus", artifacts / "pseudo_queries" / "pseudo_queries.parquet"
    if not made.is_file():
        return set()
    judged = zip(*read_columns(corpus / "qrels.parquet", "document_id", "split"), strict=True)
    targets = {document for document, split in judged if split == "train"} | set(
        read_columns(made, "document_id")[0]
    )
    return set(read_columns(corpus / DOCUMENTS, "document_id")[0]) - targets


def _made_questions(
    searcher: Searcher, settings: Parameters, documents: set[str]
) -> list[Question]:
    """Spans cut out of some of the old documents."""
    rows = zip(*read_columns(searcher.base.documents, "document_id", "text"), strict=True)
    alive = set(searcher.views[0].document_ids()) & documents
    texts = {document_id: text for document_id, text in rows if document_id in alive}
    sample = {
        document_id: texts[document_id]
        for document_id in queries.some(texts, SCORED, settings.drift.seed)
    }
    return queries.made_questions(sample, settings.drift.seed)


def _judged_questions(project: Project, searcher: Searcher, settings: Parameters) -> list[Question]:
    """The corpus's own queries for some of the old documents, where it has any; those of the splits
    dev and test, as training moves queries, and for documents that the retriever was trained with
    and that are live as they were.
    """
    alive = set(searcher.views[0].document_ids()) & trained_documents(searcher.generation)
    splits = filter(
        None, (queries.judged_queries(project.artifacts, split) for split in ("dev", "test"))
    )
    questions = [
        question for judgements in splits for question in queries.questions_for(judgements, alive)
    ]
    chosen = set(
        queries.some({question.document_id for question in questions}, SCORED, settings.drift.seed)
    )
    return [question for question in questions if question.document_id in chosen]


def protected_queries(project: Project, searcher: Searcher, seed: int) -> list[Question]:
    """At most PROTECTED of the build's dev queries for documents that the retriever was trained
    with, ranked as the build was opened: among these documents and no others.

    Not the gate's, which judges a retrain: what called for it must not have looked at them.
    None where the project has no corpus.
    """
    trained, judgements = (
        trained_documents(searcher.generation),
        queries.judged_queries(project.artifacts, "dev"),
    )
    if judgements is None:
        return []
    answers = {query: trained & relevant.keys() for query, relevant in judgements.qrels.items()}
    chosen = queries.some(
        (query for query, documents in answers.items() if documents), PROTECTED, seed
    )
    questions = [_question(judgements.queries[query], answers[query]) for query in chosen]
    ranked = zip(
        questions,
        queries.first_ranks(searcher.base.retriever.search, questions, DEPTH).tolist(),
        strict=True,
    )
    return [replace(question, rank=rank) for question, rank in ranked]


def protected_scores(
    searcher: Searcher, reference: DriftReference, arrived: Mapping[str, frozenset[str]]
) -> PairedScores:
    """The scores at the opening and now of the queries whose answers are live as they were, (q,)
    each, and what the growth of the collection since then costs them if what came is like what was
    there.

    arrived: by a query that documents came with, those documents, which answer it as well.
    """
    old, live = searcher.views[0], sum(view.documents for view in searcher.views)
    unchanged = [
        query
        for query in reference.questions.protected
        if all(answer in old for answer in query.answers)
    ]
    questions = [
        _question(query.text, {*query.answers, *arrived.get(query.text, ())}) for query in unchanged
    ]
    ranks = np.array([query.rank for query in unchanged], np.int64)
    now = queries.first_ranks(searcher.retriever.search, questions, DEPTH)
    return PairedScores(
        reciprocal_ranks(ranks),
        reciprocal_ranks(now),
        crowding(ranks, reference.trained / max(reference.trained, live)),
    )


def _question(text: str, documents: set[str]) -> Question:
    return Question(min(documents), text, frozenset(documents))


def batches(ledger: Ledger, window: int, watermark: int, trained: int = 0) -> list[EventRange]:
    """The batches of the last `window` reports, oldest first, and what came after them up to the
    event `watermark`.

    trained: the last event whose document the retriever may have been trained with; none up to it
    is an arrival.
    """
    reports = [
        report
        for report in reversed(ledger.last_drift(window + 1))
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
class Gatherer:
    """Reads batches of a live collection."""

    searcher: Searcher
    settings: Parameters
    log_view: LogView

    def arrivals(self, batch: EventRange) -> Arrivals:
        """The documents of a batch that were new or other than before, and are still live as they
        arrived then, each in the order of its event.
        """
        trained, base = trained_documents(self.searcher.generation), self.searcher.views[0]
        arrivals = self.log_view.arrivals(batch.first, batch.last)
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
        return self._retrieval_scores(queries.made_questions(measured, self.settings.drift.seed))

    def _retrieval_scores(self, questions: Sequence[Question]) -> np.ndarray | None:
        """The scores of the documents that questions are about; None without any."""
        return queries.asked_scores(self.searcher, questions) if questions else None

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
        return queries.answers(self.log_view.snapshot())

    def _measured(self, document_ids: Iterable[str]) -> list[str]:
        """As many of the documents as a report looks at: to search for the others would be for
        nothing.
        """
        return queries.some(
            document_ids, self.settings.drift.largest_batch, self.settings.drift.seed
        )

    def _vectors_and_texts(self, document_ids: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
        shares = [
            (view.part, [one for one in document_ids if one in view])
            for view in self.searcher.views
        ]
        # the last one, which is small, has the width
        shares = [share for share in shares if share[1]] or shares[-1:]
        texts: dict[str, Any] = {}
        for part, inside in shares:
            texts |= {
                one: row["text"] for one, row in DocumentFile(part.documents).read(inside).items()
            }
        vectors = [queries.document_vectors(part, inside) for part, inside in shares]
        return np.concatenate(vectors), dict(sorted(texts.items()))


@dataclass(frozen=True)
class Watched:
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
        """Report and decision as plain values."""
        return {"report": self.report.to_dict(), "decision": asdict(self.decision)}


def watch(project: Project, record: bool = True) -> Watched | None:
    """Measure, decide, keep both; None if fewer than `drift.minimum_batch` documents were added
    since the last report.

    record=False: a dry run, kept nowhere, of however few documents. Others that watch at the same
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
                ledger.record_drift(watched.as_dict(), (watched.batch.first, watched.batch.last))
            elif record:
                _refuse_looks(ledger, searcher.generation.watermark)
            return watched


def _measured(
    project: Project, searcher: Searcher, settings: Parameters, ledger: Ledger, record: bool
) -> Watched | None:
    generation, chosen = searcher.generation, settings.drift
    log_view = ledger.seen_from(standing_of(ledger, generation))
    *earlier, newest = batches(
        ledger, chosen.window, generation.watermark, log_view.standing.trained
    )
    gatherer = Gatherer(searcher, settings, log_view)
    arrived = gatherer.arrivals(newest)
    if len(arrived.vectors) < (chosen.minimum_batch if record else 1):
        return None
    arrivals = [*map(gatherer.arrivals, earlier), arrived]
    calibration = calibration_of(project, searcher, settings, arrivals, gatherer.answers)
    protected = protected_scores(searcher, calibration.reference, gatherer.answers)
    report = make_report(calibration, arrivals, len(added_since_training(generation)), protected)
    decision = decide(report, past(ledger, chosen.cooldown), chosen, dry_run=not record)
    if decision.action == "retrain" and is_unjudged(project, generation):
        decision = decision.held_back(UNPROVEN)
    return Watched(report, decision, newest)


def _ask(ledger: Ledger, watched: Watched) -> None:
    """Ask for what the report calls for. Before the report is kept: a kill in between is followed
    by another one.
    """
    decision, reason = watched.decision, "; ".join(watched.decision.reasons)
    if decision.action == "retrain":
        ledger.work.ask(WorkKind.RETRAIN, ledger.retriever, watched.batch, reason, asked_by="drift")
    elif decision.pilot:
        ledger.work.ask(WorkKind.PILOT, ledger.retriever, watched.batch, reason, asked_by="drift")


def _refuse_looks(ledger: Ledger, watermark: int) -> None:
    """End what was asked for about events up to `watermark`; what arrives later is asked about
    anew.
    """
    for look in ledger.work.open(ledger.retriever, WorkKind.DRIFT):
        if look.about and look.about.last <= watermark:
            ledger.work.end(
                look, WorkState.REFUSED, "fewer than drift.minimum_batch documents arrived"
            )


def past(ledger: Ledger, batches: int) -> list[PastDecision]:
    """What was decided for the last `batches` batches, and what retrains came to, oldest first, as
    the cooldown counts.

    A retrain stands where it took effect: behind the batches that were measured until then. One
    that a pilot asked for takes the place of the report that called for the pilot.
    """
    entries: dict[EventRange | str, tuple[float, PastDecision]] = {}
    for row in ledger.last_drift(batches):
        decision = row["report"]["decision"]
        made = PastDecision(
            decision["action"], decision["action"] == "add", pilot=decision.get("pilot", False)
        )
        entries[EventRange(row["first_event"], row["last_event"])] = row["recorded"], made
    for work in ledger.work.last(ledger.retriever, batches + 1, WorkKind.RETRAIN):
        ended = work.state in (WorkState.DONE, WorkState.REFUSED)
        if work.about is None and work.state != WorkState.DONE:
            continue  # a person's, and nothing changed
        _, called = entries.get(work.about or work.id, (0.0, None))
        step = PastDecision(
            "retrain",
            carried_out=ended,
            waits=work.state == WorkState.OPEN,
            pilot=bool(called and called.pilot),
        )
        entries[work.about or work.id] = (work.ended or work.asked) if ended else work.asked, step
    return [step for _, step in sorted(entries.values(), key=itemgetter(0))]
