"""The drift reference of the live build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.collection.generations.generation import (
    Generation,
    trained_documents,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import DOCUMENTS, read_columns
from model_code.collection.segments.placements import normalize_rows
from model_code.drift.calibration import MIN_REFERENCE_RATIO, Calibration
from model_code.drift.measures import (
    OldScores,
    PairedScores,
    crowding,
    reciprocal_ranks,
)
from model_code.drift.reference import FORMAT, DriftReference, Question, Questions
from model_code.drift.report import Arrivals
from model_code.files import MANIFEST, canonical_json, hash_text
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness import probes
from orchestration.parameters import Parameters

# old documents whose queries every report searches, as the measure of what new ones should reach
SCORED = 600


PROTECTED = 300  # queries, searched again for every report


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
    see `old_document_scores`.
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
        probes.old_document_scores(
            searcher, reference.questions.made if _enough(settings, made_scores) else (), arrived
        ),
        probes.old_document_scores(
            searcher,
            reference.questions.asked if _enough(settings, asked_scores) else (),
            arrived,
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
    first = [
        rows[0] for document, rows in base.rows.rows_by_document.items() if document in documents
    ]
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
    return replace(reference, vectors=normalize_rows(reference.vectors))


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
    facts |= {"format": FORMAT, "judged": probes.has_corpus_queries(project.artifacts)}
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
        for document_id in probes.sample_texts(texts, SCORED, settings.drift.seed)
    }
    return probes.generate_questions(sample, settings.drift.seed)


def _judged_questions(project: Project, searcher: Searcher, settings: Parameters) -> list[Question]:
    """The corpus's own queries for some of the old documents, where it has any; those of the splits
    dev and test, as training moves queries, and for documents that the retriever was trained with
    and that are live as they were.
    """
    alive = set(searcher.views[0].document_ids()) & trained_documents(searcher.generation)
    splits = filter(
        None, (probes.judged_queries(project.artifacts, split) for split in ("dev", "test"))
    )
    questions = [
        question for judgements in splits for question in probes.judged_questions(judgements, alive)
    ]
    chosen = set(
        probes.sample_texts(
            {question.document_id for question in questions}, SCORED, settings.drift.seed
        )
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
        probes.judged_queries(project.artifacts, "dev"),
    )
    if judgements is None:
        return []
    answers = {query: trained & relevant.keys() for query, relevant in judgements.qrels.items()}
    chosen = probes.sample_texts(
        (query for query, documents in answers.items() if documents), PROTECTED, seed
    )
    questions = [_question(judgements.queries[query], answers[query]) for query in chosen]
    ranked = zip(
        questions,
        probes.first_ranks(searcher.base.retriever.search, questions, DEPTH).tolist(),
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
    now = probes.first_ranks(searcher.retriever.search, questions, DEPTH)
    return PairedScores(
        reciprocal_ranks(ranks),
        reciprocal_ranks(now),
        crowding(ranks, reference.trained / max(reference.trained, live)),
    )


def _question(text: str, documents: set[str]) -> Question:
    return Question(min(documents), text, frozenset(documents))
