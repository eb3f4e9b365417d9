"""How well documents are found, by made and by real queries: the same measures for what is new and
for what is old.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import Feedback, Opinion
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

CLICKS = 2.0  # weight of clicks from which a document counts as relevant


def document_vectors(part: LoadedSegment, document_ids: Iterable[str]) -> np.ndarray:
    """The unit vectors (m, H) of the first passages of some documents of a part: no others are read
    from its file.
    """
    first = np.array(
        [part.rows.rows_by_document[document][0] for document in document_ids], np.int64
    )
    return normalize_rows(
        np.asarray(part.retriever.passage_vectors(part.rows.document_ids)[first], np.float32)
    )


def sample_texts(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """At most `most` different texts, drawn evenly whatever their order: one that comes a hundred
    times counts once.

    >>> sample_texts(["b", "a", "b", "a"], 9, 0)
    ['a', 'b']
    """
    different = sorted(set(texts))
    if len(different) <= most:
        return different
    chosen = np.random.default_rng([seed, len(different)]).permutation(len(different))[:most]
    return [different[number] for number in sorted(chosen.tolist())]


def judged_queries(artifacts: Path, split: str) -> Judgements | None:
    """The corpus's judged queries of a split; None where the project has no corpus."""
    return (
        load_corpus(artifacts / "corpus").judgements(split)
        if has_corpus_queries(artifacts)
        else None
    )


def gate_judgements(artifacts: Path) -> Judgements:
    """Those that promotions are judged by: the gate's own, or the test queries if it has none."""
    corpus = load_corpus(artifacts / "corpus")
    gate = corpus.judgements(GATE)
    return gate if gate.queries else corpus.judgements("test")


def has_corpus_queries(artifacts: Path) -> bool:
    """Whether `judged_queries` can say anything now: the stage corpus ran, or was checked out."""
    return (artifacts / "corpus" / "queries.parquet").is_file()


def generate_questions(texts: Mapping[str, str], seed: int) -> list[Question]:
    """Spans cut out of documents, about as long as what people type.

    texts: by document id; one whose text gives no query is left out.
    """
    made = InverseCloze("short_cloze", QUERY_LENGTH_SPANS).generate(texts, seed)
    return [
        Question(query.document_id, query.text, frozenset([query.document_id])) for query in made
    ]


def document_scores(searcher: Searcher, questions: Sequence[Question]) -> np.ndarray:
    """The mean over a document's questions of the reciprocal rank at 10 of the first answer, among
    all that is live: (n,), in the order of the documents' ids.
    """
    by_document: dict[str, list[float]] = {}
    scores = reciprocal_ranks(first_ranks(searcher.retriever.search, questions)).tolist()
    for question, score in zip(questions, scores, strict=True):
        by_document.setdefault(question.document_id, []).append(score)
    return np.array([np.mean(scores) for _, scores in sorted(by_document.items())], np.float32)


def old_document_scores(
    searcher: Searcher, questions: Iterable[Question], arrived: Mapping[str, frozenset[str]]
) -> np.ndarray:
    """The scores of the old documents that are live as they were, as `document_scores` of new ones
    finds them: (n,).

    arrived: by a query that documents came with, those documents, which answer it as well.
    """
    old = searcher.views[0]
    answered = [
        replace(question, answers=question.answers | arrived.get(question.text, frozenset()))
        for question in questions
        if question.document_id in old
    ]
    return document_scores(searcher, answered)


def first_ranks(
    search: Search, questions: Sequence[Question], depth: int = MAX_COUNTED_RANK
) -> np.ndarray:
    """The rank of the first answer to each question, from 1; 0 if none is among `depth`: (q,).

    One search for all, in which a text that several documents answer is one query.
    """
    texts = list(dict.fromkeys(question.text for question in questions))
    rankings = dict(zip(texts, search(texts, depth) if texts else [], strict=True))
    first = []
    for question in questions:
        ranking = enumerate(rankings[question.text], start=1)
        ranks = (rank for rank, (document, _) in ranking if document in question.answers)
        first.append(next(ranks, 0))
    return np.array(first, np.int64)


def judged_questions(judgements: Judgements, documents: Set[str]) -> list[Question]:
    """The judged queries that `documents` answer, once for each of them."""
    return [
        Question(document, judgements.queries[query], frozenset(relevant))
        for query, relevant in judgements.qrels.items()
        for document in sorted(documents & relevant.keys())
    ]


def documents_by_query(documents: Iterable[Document]) -> dict[str, frozenset[str]]:
    """The documents that answer each query that documents came with: all that came with this text.

    >>> documents_by_query([Document("a", "A", "", queries=("how?",)), Document("b", "B", "", queries=("how?", "why?"))])["why?"]
    frozenset({'b'})
    """
    by_text: dict[str, set[str]] = {}
    for document in documents:
        for text in document.queries:
            by_text.setdefault(text, set()).add(document.document_id)
    return {text: frozenset(ids) for text, ids in by_text.items()}


def feedback_relevance(said: Iterable[Feedback]) -> dict[str, dict[str, int]]:
    """What people's verdicts come to, by query text and document: 1 relevant, 0 not.

    Thumbs decide where more of them point one way. Else clicks do, once they weigh `CLICKS`: one at
    rank r weighs log2(1 + r), the inverse of how likely a hit there is looked at (as DCG discounts;
    inverse propensity weighting, Joachims et al., 2017). So one click on the first hit says nothing
    yet, and one on the third does.

    >>> up, click = Feedback("how?", "a", "up"), Feedback("how?", "b", "click")
    >>> feedback_relevance([up, click, Feedback("how?", "c", "click", rank=3), Feedback("why?", "a", "down")])
    {'how?': {'a': 1, 'c': 1}, 'why?': {'a': 0}}
    """
    thumbs: Counter[tuple[str, str]] = Counter()
    clicks: dict[tuple[str, str], float] = {}
    for feedback in said:
        pair = feedback.query, feedback.document_id
        if feedback.verdict == Opinion.CLICK:
            clicks[pair] = clicks.get(pair, 0.0) + math.log2(1 + feedback.rank)
        else:
            thumbs[pair] += 1 if feedback.verdict == Opinion.UP else -1
    judged: dict[str, dict[str, int]] = {}
    for query, document in sorted(thumbs.keys() | clicks.keys()):
        if thumb := thumbs[query, document]:
            judged.setdefault(query, {})[document] = int(thumb > 0)
        elif clicks.get((query, document), 0.0) >= CLICKS:
            judged.setdefault(query, {})[document] = 1
    return judged
