"""Measure how well documents are found by the queries that ask for them.

The same functions measure new and old documents, so that a drift check can compare the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.placements import normalize_rows
from model_code.collection.segments.segment import LoadedSegment
from model_code.corpus.settings import GATE
from model_code.corpus.tables import Judgements, load_corpus
from model_code.drift.measures import MAX_COUNTED_RANK, reciprocal_ranks
from model_code.drift.reference import Question
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import QUERY_LENGTH_SPANS
from model_code.retrieval.protocol import Search
from model_code.text.documents import Document


def first_passage_vectors(segment: LoadedSegment, document_ids: Iterable[str]) -> np.ndarray:
    """Read the vectors of the first passages of the given documents of a segment.

    Only the rows of these passages are read from the segment's file. A long document has several
    passages, and one row for each of them.

    Args:
        segment: The segment, an immutable index of documents, that holds the documents.
        document_ids: Ids of m documents.

    Returns:
        Vectors of unit norm in the order of `document_ids`, (m, H) float32.
    """
    first_rows = [segment.rows.rows_by_document[document_id][0] for document_id in document_ids]
    vectors = segment.retriever.passage_vectors(segment.rows.document_ids)
    selected = vectors[np.array(first_rows, np.int64)]
    return normalize_rows(np.asarray(selected, np.float32))


def sample_texts(texts: Iterable[str], limit: int, seed: int) -> list[str]:
    """Draw at most `limit` distinct texts, in ascending order.

    The draw does not depend on the order of `texts`, and a repeated text counts once.

    >>> sample_texts(["b", "a", "b", "a"], limit=9, seed=0)
    ['a', 'b']
    """
    distinct = sorted(set(texts))
    if len(distinct) <= limit:
        return distinct

    generator = np.random.default_rng([seed, len(distinct)])
    positions = generator.permutation(len(distinct))[:limit]
    return [distinct[position] for position in sorted(positions.tolist())]


def has_corpus_queries(artifacts: Path) -> bool:
    """Return whether the stage `corpus` was built or checked out below `artifacts`."""
    return (artifacts / "corpus" / "queries.parquet").is_file()


def judged_queries(artifacts: Path, split: str) -> Judgements | None:
    """Load the corpus's judged queries of a split; None if the corpus is not built."""
    if not has_corpus_queries(artifacts):
        return None
    return load_corpus(artifacts / "corpus").judgements(split)


def gate_judgements(artifacts: Path) -> Judgements:
    """Load the judged queries of the split `gate`, or of `test` if that split is empty.

    The gate, which decides about promotions, compares retrievers on these queries.
    """
    corpus = load_corpus(artifacts / "corpus")
    judgements = corpus.judgements(GATE)
    if judgements.queries:
        return judgements
    return corpus.judgements("test")


def generate_questions(texts: Mapping[str, str], seed: int) -> list[Question]:
    """Generate pseudo-queries for documents.

    A pseudo-query is a span of the document's text, about as long as a typed query.

    Args:
        texts: Texts by document id. A text that is too short for a query is left out.
        seed: Random seed for the choice of spans.
    """
    generator = InverseCloze("short_cloze", QUERY_LENGTH_SPANS)
    questions = []
    for query in generator.generate(texts, seed):
        answers = frozenset([query.document_id])
        questions.append(Question(query.document_id, query.text, answers))
    return questions


def generate_lasting_questions(texts: Mapping[str, str], seed: int) -> dict[str, Question]:
    """Generate a pseudo-query for each document that stays the same if the document changes little.

    Two versions of a document are compared by queries from each. Equal queries make the comparison
    more exact, and their encodings are used again.

    Args:
        texts: Texts by document id. A text that is too short for a query is left out.
        seed: Random seed for the choice of spans.

    Returns:
        The question of each document, by its id.
    """
    generator = InverseCloze("short_cloze", QUERY_LENGTH_SPANS)
    questions: dict[str, Question] = {}
    for document_id, text in texts.items():
        span = generator.lasting_span(document_id, text, seed)
        if span is not None:
            questions[document_id] = Question(document_id, span, frozenset([document_id]))
    return questions


def judged_questions(judgements: Judgements, documents: Set[str]) -> list[Question]:
    """Return a question for each pair of a judged query and one of `documents` that answers it."""
    questions = []
    for query_id, relevant in judgements.qrels.items():
        text = judgements.queries[query_id]
        for document_id in sorted(documents & relevant.keys()):
            questions.append(Question(document_id, text, frozenset(relevant)))
    return questions


def first_ranks(
    search: Search, questions: Sequence[Question], depth: int = MAX_COUNTED_RANK
) -> np.ndarray:
    """Return the rank of the first answer to each question.

    All texts are searched in one call. A text that several questions share is searched once.

    Args:
        search: Function that maps texts and a depth to rankings.
        questions: q questions.
        depth: Number of documents in each ranking.

    Returns:
        Ranks from 1, (q,) int64; 0 if no answer is among the first `depth` documents.
    """
    texts = list(dict.fromkeys(question.text for question in questions))
    rankings = search(texts, depth) if texts else []
    ranking_by_text = dict(zip(texts, rankings, strict=True))

    first = np.zeros(len(questions), np.int64)
    for i, question in enumerate(questions):
        for rank, (document_id, _) in enumerate(ranking_by_text[question.text], start=1):
            if document_id in question.answers:
                first[i] = rank
                break
    return first


def document_scores(search: Search, questions: Sequence[Question]) -> np.ndarray:
    """Score how well each document is found among all live documents.

    The score of a document is the mean reciprocal rank over its questions. The rank is that of the
    first answer; the reciprocal of a rank beyond 10 counts as 0.

    Args:
        search: Function that searches the live collection. It must not index documents with the
            words of their known queries, because the questions may be among these.
        questions: The questions, each with the document that it was made for.

    Returns:
        One score per document, in ascending order of document ids, (n,) float32.
    """
    scores = scores_by_document(search, questions)
    return np.array(list(scores.values()), np.float32)


def scores_by_document(search: Search, questions: Sequence[Question]) -> dict[str, float]:
    """Return the scores of `document_scores` by document id, in ascending order of the ids."""
    scores = reciprocal_ranks(first_ranks(search, questions))

    scores_of_questions: dict[str, list[float]] = {}
    for question, score in zip(questions, scores.tolist(), strict=True):
        scores_of_questions.setdefault(question.document_id, []).append(score)

    return {
        document_id: float(np.mean(scores_of_questions[document_id]))
        for document_id in sorted(scores_of_questions)
    }


def old_document_scores(
    searcher: Searcher,
    search: Search,
    questions: Iterable[Question],
    arrived_answers: Mapping[str, frozenset[str]],
) -> np.ndarray:
    """Score how well old documents are found, if they are live and unchanged.

    The scores are computed by `document_scores`, as they are for new documents.

    Args:
        searcher: Searcher of the live collection.
        search: The search of this collection without the words of known queries.
        questions: Questions for old documents.
        arrived_answers: Ids of the documents that arrived with a query, by the text of the query.
            They also count as answers to a question with the same text.

    Returns:
        One score per document, in ascending order of document ids, (n,) float32.
    """
    old_documents = searcher.base_view
    current_questions = []
    for question in questions:
        if question.document_id in old_documents:
            answers = question.answers | arrived_answers.get(question.text, frozenset())
            current_questions.append(replace(question, answers=answers))
    return document_scores(search, current_questions)


def documents_by_query(documents: Iterable[Document]) -> dict[str, frozenset[str]]:
    """Return the ids of the documents that arrived with each query, by the text of the query.

    >>> first = Document("a", "A", "", queries=("how?",))
    >>> second = Document("b", "B", "", queries=("how?", "why?"))
    >>> documents_by_query([first, second])["why?"]
    frozenset({'b'})
    """
    ids_by_query: dict[str, set[str]] = {}
    for document in documents:
        for query in document.queries:
            ids_by_query.setdefault(query, set()).add(document.document_id)
    return {query: frozenset(ids) for query, ids in ids_by_query.items()}
