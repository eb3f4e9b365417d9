"""The drift reference of a live build: made from its base when it is first asked for, and kept with its calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from model_code.drift.calibration import SMALLEST_SHARE, Calibration
from model_code.drift.measures import OldScores, Paired, crowding, reciprocal_ranks
from model_code.drift.reference import FORMAT, DriftReference, ProtectedQuery, Question, Questions
from model_code.drift.report import Arrivals
from model_code.files import canonical_json, hash_text
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, Generation, trained_documents
from model_code.live.searcher import Searcher
from model_code.manifest import MANIFEST
from orchestration.freshness.queries import (
    first_ranks,
    first_rows,
    has_queries,
    judged_queries,
    made_questions,
    old_scores,
    passage_vectors,
    questions_for,
    some,
)
from orchestration.parameters import Parameters
from orchestration.project import Project

SCORED = 600  # old documents whose queries every report searches, as the measure of what new ones should reach
PROTECTED = 300  # queries, searched again for every report
DEPTH = 100  # of both searches: what a growing collection costs depends on ranks beyond those that count, too


def calibration_of(
    project: Project,
    searcher: Searcher,
    settings: Parameters,
    arrivals: Sequence[Arrivals],
    arrived: Mapping[str, frozenset[str]],
) -> Calibration:
    """The calibration of the live build for a report on `arrivals`, from `.freshet/drift`; that folder may be deleted
    at any time.

    With scores of old documents only where the arrivals have them, as these take a while. arrived: see `old_scores`.
    """
    folder = _folder(project, searcher, settings)
    kept = folder / "reference"
    if not (kept / MANIFEST).is_file():
        build_reference(project, searcher, settings).save(kept)
    reference = DriftReference.load(kept)
    made, asked = reference.questions.made, reference.questions.asked
    scores = OldScores(
        old_scores(searcher, made if _enough(settings, [batch.quality for batch in arrivals]) else (), arrived),
        old_scores(searcher, asked if _enough(settings, [batch.asked for batch in arrivals]) else (), arrived),
    )
    return Calibration(reference, settings.drift, folder / "nulls", scores)


def build_reference(project: Project, searcher: Searcher, settings: Parameters) -> DriftReference:
    """A reference of documents that the retriever was trained with.

    Growth counts from the documents that the retriever was trained on, which a base that was clustered anew outnumbers.
    """
    base, chosen = searcher.base, settings.drift
    documents, note = reference_documents(project, searcher.generation, SMALLEST_SHARE * chosen.largest_batch)
    ids = base.rows.document_ids
    rows = [row for row in first_rows(ids).tolist() if ids[row] in documents]  # of their first passages
    return DriftReference.build(
        passage_vectors(base),
        searcher.generation.fingerprint,
        chosen,
        np.array(rows, np.int64),
        trained=len(trained_documents(searcher.generation)),
        questions=old_questions(project, searcher, settings, documents),
        note=note,
    )


def _enough(settings: Parameters, scores: Sequence[np.ndarray | None]) -> bool:
    """Whether there are scores of so many new documents that a report compares them with those of old ones."""
    return sum(len(each) for each in scores if each is not None) >= settings.drift.minimum_batch


def _folder(project: Project, searcher: Searcher, settings: Parameters) -> Path:
    """One folder per build and settings: the base never changes under its number and fingerprint.

    A reference that was made while the corpus's queries were not there is no reference for later: it protects none.
    """
    generation = searcher.generation
    facts = {"base": generation.base, "fingerprint": generation.fingerprint, "settings": repr(settings.drift)}
    facts |= {"format": FORMAT, "judged": has_queries(project.artifacts)}
    return project.state / "drift" / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}"


def reference_documents(project: Project, generation: Generation, least: int) -> tuple[set[str], str]:
    """The documents that new ones are compared with, and a note.

    Those that the retriever was trained with and that no training query asked for, as training moves those; all that it
    was trained with where the others are fewer than `least`, which the note then says.
    """
    trained = trained_documents(generation)
    untouched = trained & not_asked_in_training(project.artifacts)
    if len(untouched) >= least:
        return untouched, ""
    return trained, (
        f"also documents that training queries ask for: {len(untouched)} of {len(trained)} are asked for by none, and "
        f"{least} are wanted (three times a batch)"
    )


def not_asked_in_training(artifacts: Path) -> set[str]:
    """The corpus's documents that no judged or made query of the split train asks for; none without a corpus."""
    corpus, made = artifacts / "corpus", artifacts / "pseudo_queries" / "pseudo_queries.parquet"
    if not made.is_file():
        return set()
    judged = zip(*read_columns(corpus / "qrels.parquet", "document_id", "split"), strict=True)
    asked = {document for document, split in judged if split == "train"} | set(read_columns(made, "document_id")[0])
    return set(read_columns(corpus / DOCUMENTS, "document_id")[0]) - asked


def old_questions(project: Project, searcher: Searcher, settings: Parameters, documents: set[str]) -> Questions:
    """Those made from some of `documents`, those that the corpus has, and those that additions must not harm."""
    return Questions(
        tuple(_made(searcher, settings, documents)),
        tuple(_asked(project, searcher, settings)),
        tuple(protected_queries(project, searcher, settings.drift.seed)),
    )


def _made(searcher: Searcher, settings: Parameters, documents: set[str]) -> list[Question]:
    """Spans cut out of some of the old documents."""
    ids, texts = read_columns(searcher.base.documents, "document_id", "text")
    alive = set(searcher.views[0].document_ids()) & documents
    known = {document_id: text for document_id, text in zip(ids, texts, strict=True) if document_id in alive}
    sample = {document_id: known[document_id] for document_id in some(known, SCORED, settings.drift.seed)}
    return made_questions(sample, settings.drift.seed)


def _asked(project: Project, searcher: Searcher, settings: Parameters) -> list[Question]:
    """The corpus's own queries for some of the old documents, where it has any; those of the splits dev and test, as
    training moves queries, and for documents that the retriever was trained with and that are live as they were."""
    alive = set(searcher.views[0].document_ids()) & trained_documents(searcher.generation)
    splits = [judged_queries(project.artifacts, split) for split in ("dev", "test")]
    questions = [question for judgements in splits if judgements for question in questions_for(judgements, alive)]
    chosen = set(some({question.document_id for question in questions}, SCORED, settings.drift.seed))
    return [question for question in questions if question.document_id in chosen]


def protected_queries(project: Project, searcher: Searcher, seed: int) -> list[ProtectedQuery]:
    """At most PROTECTED of the build's dev queries for documents that
    the retriever was trained with, ranked as the build was opened: among these documents and no others.

    Not test queries: the gate judges a retrain by those, and what called for it must not have looked at them.
    None where the project has no corpus.
    """
    trained, judgements = trained_documents(searcher.generation), judged_queries(project.artifacts, "dev")
    if judgements is None:
        return []
    answers = {query: trained & relevant.keys() for query, relevant in judgements.qrels.items()}
    answered = [query for query, documents in answers.items() if documents]
    questions = [_question(judgements.queries[query], answers[query]) for query in some(answered, PROTECTED, seed)]
    held = set(searcher.base.rows.document_ids)  # more than was trained with, where it was clustered anew
    search = partial(searcher.base.retriever.search, allowed=None if held <= trained else held & trained)
    ranked = zip(questions, first_ranks(search, questions, DEPTH).tolist(), strict=True)
    return [ProtectedQuery(question.text, tuple(sorted(question.answers)), rank) for question, rank in ranked]


def protected_scores(searcher: Searcher, reference: DriftReference, arrived: Mapping[str, frozenset[str]]) -> Paired:
    """The scores at the opening and now of the queries whose answers are live as they were, (q,) each, and what the
    growth of the collection since then costs them if what came is like what was there.

    arrived: by a query that documents came with, those documents, which answer it as well.
    """
    old, live = searcher.views[0], sum(view.documents for view in searcher.views)
    kept = [query for query in reference.questions.protected if all(answer in old for answer in query.answers)]
    questions = [_question(query.text, {*query.answers, *arrived.get(query.text, ())}) for query in kept]
    ranks = np.array([query.rank for query in kept], np.int64)
    now = first_ranks(searcher.retriever.search, questions, DEPTH)
    return Paired(
        reciprocal_ranks(ranks),
        reciprocal_ranks(now),
        crowding(ranks, reference.trained / max(reference.trained, live)),
    )


def _question(text: str, answers: set[str]) -> Question:
    return Question(min(answers), text, frozenset(answers))
