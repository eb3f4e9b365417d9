"""The drift reference: the old documents and queries that new documents are compared with.

The first drift check of a build makes the reference from the base segment, which holds the
documents that the retriever was trained with. The reference and its null distributions are cached
below `.freshet/drift`. That folder may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.collection.generations.generation import Generation, trained_documents
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import (
    CORPUS_DOCUMENTS,
    read_columns,
    read_parquet_columns,
)
from model_code.collection.segments.placements import normalize_rows
from model_code.drift.calibration import MIN_REFERENCE_RATIO, Calibration
from model_code.drift.measures import (
    OldScores,
    PairedScores,
    crowding,
    no_paired_scores,
    reciprocal_ranks,
)
from model_code.drift.reference import FORMAT, DriftReference, Question, Questions
from model_code.files import MANIFEST, canonical_json, hash_text, read_json
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness import probes
from orchestration.freshness.check_cache import CheckCache
from orchestration.parameters import Parameters

# Number of old documents that a report scores, for each kind of query. It limits the time of a
# drift check, because the queries of each document are searched.
MAX_SCORED_DOCUMENTS = 600
# Number of new documents that a report scores, for each kind of query. A comparison needs
# `MIN_REFERENCE_RATIO` scored old documents for each new one, so more could not be compared.
MAX_SCORED_ARRIVALS = MAX_SCORED_DOCUMENTS // MIN_REFERENCE_RATIO
# Number of protected queries that a report searches. A protected query is a dev query for an old
# document; it shows whether additions push old documents down.
MAX_PROTECTED_QUERIES = 300
# Number of documents in the rankings of protected queries. Only the first few ranks count for a
# score. But a larger collection pushes documents down in any case, and the lower ranks show by how
# much.
PROTECTED_DEPTH = 100


def load_calibration(
    project: Project, searcher: Searcher, settings: Parameters, scores: OldScores
) -> Calibration:
    """Return the drift reference and its null distributions; make the reference if needed.

    The reference describes old documents, with which a drift report compares new ones. A null
    distribution has the values that a measure takes without drift.

    Args:
        project: The project.
        searcher: Searcher of the live collection.
        settings: All settings of the project.
        scores: Scores of old documents, measured for the present report.
    """
    folder = calibration_folder(project, searcher, settings)
    reference = load_reference(project, searcher, settings)
    return Calibration(reference, settings.drift, folder / "nulls", scores)


def load_reference(project: Project, searcher: Searcher, settings: Parameters) -> DriftReference:
    """Load the drift reference of the live retriever, and make it if there is none.

    The reference holds the old documents and queries that new documents are compared with.
    """
    folder = calibration_folder(project, searcher, settings) / _reference_name(searcher)
    if not (folder / MANIFEST).is_file():
        build_reference(project, searcher, settings).save(folder)
    return DriftReference.load(folder)


def _reference_name(searcher: Searcher) -> str:
    """Return the name of the drift reference's folder, which depends on the weights of a retune.

    A retune chooses the weights of a fusion again. The reference holds the ranks of old documents
    before any addition, and other weights give other ranks.
    """
    tuned = searcher.generation.tuned
    return "reference" if tuned is None else f"reference-{tuned}"


def calibration_folder(project: Project, searcher: Searcher, settings: Parameters) -> Path:
    """Return the folder with the drift reference for the present build and drift settings.

    The name of the folder contains a hash of everything that the reference depends on:

    - The checksums of the base segment, the index of the build. They identify the build. The number
      of its generation does not: if `live/` was deleted or restored, another build may get the same
      number.
    - The fingerprint of the encoder, the drift settings, and the format of the reference.
    - Whether the corpus is built. A reference that was made without it has no protected queries.
    """
    generation = searcher.generation
    base_manifest = read_json(searcher.base.folder / MANIFEST)
    facts = {
        "base": base_manifest["checksums"],
        "fingerprint": generation.fingerprint,
        "settings": repr(settings.drift),
        "format": FORMAT,
        "judged": probes.has_corpus_queries(project.artifacts),
    }
    digest = hash_text(canonical_json(facts))[:16]
    return project.state / "drift" / f"{generation.retriever}-{digest}"


def build_reference(project: Project, searcher: Searcher, settings: Parameters) -> DriftReference:
    """Build the drift reference from documents that the live retriever was trained with.

    The reference holds what new documents are compared with: the vectors of old documents, and
    three kinds of queries for old documents:

    - `made`: pseudo-queries, which are cut out of the documents.
    - `asked`: queries that were judged for the documents.
    - `protected`: judged queries that show whether added documents push old documents down.
    """
    base = searcher.base
    seed = settings.drift.seed
    min_documents = MIN_REFERENCE_RATIO * settings.drift.largest_batch
    documents, note = select_reference_documents(project, searcher.generation, min_documents)

    # A document is compared by the vector of its first passage.
    first_passage_rows = []
    for document_id, rows in base.rows.rows_by_document.items():
        if document_id in documents:
            first_passage_rows.append(rows[0])

    questions = Questions(
        made=tuple(_pseudo_questions(searcher, documents, seed)),
        asked=tuple(_judged_questions(project, searcher, seed)),
        protected=tuple(select_protected_queries(project, searcher, seed)),
    )
    reference = DriftReference.build(
        base.retriever.passage_vectors(base.rows.document_ids),
        searcher.generation.fingerprint,
        settings.drift,
        rows=np.array(first_passage_rows, np.int64),
        trained=len(trained_documents(searcher.generation)),
        questions=questions,
        note=note,
    )
    return replace(reference, vectors=normalize_rows(reference.vectors))


def select_reference_documents(
    project: Project, generation: Generation, min_documents: int
) -> tuple[set[str], str]:
    """Select the old documents that new ones are compared with.

    Training moves the vectors of the documents that training queries ask for. By these vectors, a
    classifier could tell such documents from new ones although their texts are alike. They are
    therefore left out, unless fewer than `min_documents` other documents remain. A baseline is not
    trained, so all its documents are used.

    Args:
        project: The project.
        generation: The live generation.
        min_documents: Number of documents that a reference needs.

    Returns:
        Document ids, and a note that reports show. The note is empty if there is nothing to note.
    """
    trained = trained_documents(generation)
    if generation.retriever in parameters.BASELINES:
        return trained, ""

    not_moved = trained & documents_without_training_queries(project.artifacts)
    if len(not_moved) >= min_documents:
        return not_moved, ""

    note = (
        "also documents that training queries ask for: "
        f"{len(not_moved)} of {len(trained)} have no such query, "
        f"and {min_documents} are needed ({MIN_REFERENCE_RATIO} times a batch)"
    )
    return trained, note


def documents_without_training_queries(artifacts: Path) -> set[str]:
    """Return the ids of the documents that no training query and no pseudo-query asks for.

    The result is empty if the stage `pseudo_queries` has not run.
    """
    corpus = artifacts / "corpus"
    pseudo_queries = artifacts / "pseudo_queries" / "pseudo_queries.parquet"
    if not pseudo_queries.is_file():
        return set()

    (pseudo_query_targets,) = read_parquet_columns(pseudo_queries, "document_id")
    targets = set(pseudo_query_targets)
    judged_documents, splits = read_parquet_columns(
        corpus / "qrels.parquet", "document_id", "split"
    )
    for document_id, split in zip(judged_documents, splits, strict=True):
        if split == "train":
            targets.add(document_id)

    (documents,) = read_parquet_columns(corpus / CORPUS_DOCUMENTS, "document_id")
    return set(documents) - targets


def _pseudo_questions(searcher: Searcher, documents: set[str], seed: int) -> list[Question]:
    """Generate pseudo-queries for a sample of the old documents that are still live."""
    candidates = documents.intersection(searcher.base_view.document_ids())
    sample = set(probes.sample_texts(candidates, MAX_SCORED_DOCUMENTS, seed))

    document_ids, texts = read_columns(searcher.base.documents, "document_id", "text")
    sampled_texts = {}
    for document_id, text in zip(document_ids, texts, strict=True):
        if document_id in sample:
            sampled_texts[document_id] = text
    return probes.generate_questions(dict(sorted(sampled_texts.items())), seed)


def _judged_questions(project: Project, searcher: Searcher, seed: int) -> list[Question]:
    """Return the corpus's judged queries for a sample of the old documents.

    Only queries of the splits dev and test are used: training fits the train queries, so they find
    their documents better than new queries do. Only documents that are live and unchanged since the
    training are sampled.
    """
    trained = trained_documents(searcher.generation)
    documents = trained.intersection(searcher.base_view.document_ids())

    questions = []
    for split in ("dev", "test"):
        judgements = probes.judged_queries(project.artifacts, split)
        if judgements is not None:
            questions.extend(probes.judged_questions(judgements, documents))

    asked_documents = {question.document_id for question in questions}
    sample = set(probes.sample_texts(asked_documents, MAX_SCORED_DOCUMENTS, seed))
    return [question for question in questions if question.document_id in sample]


def select_protected_queries(project: Project, searcher: Searcher, seed: int) -> list[Question]:
    """Select dev queries for old documents, and measure the ranks of their answers.

    The ranks are those before any document was added, because only the base segment is searched.
    The base segment is the index of the documents that the retriever was trained on. A drift check
    later repeats these protected queries on the live collection. It compares the ranks, to see
    whether added documents push old documents down. Both searches ignore the words of known
    queries.

    A drift check can cause a retrain, and the queries of the split `gate` judge the result. A
    judgement must not rest on the queries that caused it, so the split `dev` is used here.

    Returns:
        At most `MAX_PROTECTED_QUERIES` questions with their ranks; none if the corpus is not built.
    """
    judgements = probes.judged_queries(project.artifacts, "dev")
    if judgements is None:
        return []

    trained = trained_documents(searcher.generation)
    answers = {}
    for query_id, relevant in judgements.qrels.items():
        trained_answers = trained & relevant.keys()
        if trained_answers:
            answers[query_id] = trained_answers

    questions = []
    for query_id in probes.sample_texts(answers, MAX_PROTECTED_QUERIES, seed):
        questions.append(_make_question(judgements.queries[query_id], answers[query_id]))

    plain = searcher.base.retriever.without_known_words()
    ranks = probes.first_ranks(plain.search, questions, PROTECTED_DEPTH)
    return [
        replace(question, rank=rank)
        for question, rank in zip(questions, ranks.tolist(), strict=True)
    ]


def score_protected_queries(
    searcher: Searcher,
    reference: DriftReference,
    settings: Parameters,
    arrived_answers: Mapping[str, frozenset[str]],
    cache: CheckCache,
) -> PairedScores:
    """Score the protected queries as they were answered before any addition, and as they are now.

    A protected query is a dev query for an old document. The difference shows how far additions
    push old documents down. Only queries whose answers are all live and unchanged are scored. If
    they are too few to be tested, they are not searched.

    Args:
        searcher: Searcher of the live collection.
        reference: The drift reference, which holds the queries and their earlier ranks.
        settings: All settings of the project.
        arrived_answers: Ids of the documents that arrived with a query, by the text of the query.
            They also count as answers to a protected query with the same text.
        cache: Encodings of queries that earlier checks have kept.

    Returns:
        The scores before and now, (q,) each, and the loss to expect from growth alone. Documents
        like the old ones would cause this loss. If there are too few queries, only the scores
        before.
    """
    old_documents = searcher.base_view
    unchanged = []
    for query in reference.questions.protected:
        if all(answer in old_documents for answer in query.answers):
            unchanged.append(query)

    current_questions = []
    for query in unchanged:
        answers = query.answers | arrived_answers.get(query.text, frozenset())
        current_questions.append(_make_question(query.text, answers))

    ranks_before = np.array([query.rank for query in unchanged], np.int64)
    if len(unchanged) < settings.drift.minimum_batch:
        # The scores before are returned nevertheless, because the report counts the queries by
        # them.
        return no_paired_scores()._replace(before=reciprocal_ranks(ranks_before))
    search = cache.queries.cached(searcher.plain_retriever).search
    ranks_now = probes.first_ranks(search, current_questions, PROTECTED_DEPTH)

    share = remaining_share(searcher, reference.trained)
    return PairedScores(
        reciprocal_ranks(ranks_before),
        reciprocal_ranks(ranks_now),
        crowding(ranks_before, share),
        tuple(min(query.answers) for query in unchanged),
    )


def remaining_share(searcher: Searcher, trained: int) -> float:
    """Return the number of documents at the training as a share of the live documents, at most 1.

    Args:
        searcher: Searcher of the live collection.
        trained: Number of documents that the retriever was trained with.
    """
    live_documents = sum(view.documents for view in searcher.views)
    return trained / max(trained, live_documents)


def _make_question(text: str, answers: Set[str]) -> Question:
    return Question(min(answers), text, frozenset(answers))
