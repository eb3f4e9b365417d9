"""How well documents are found, by made and by real queries: the same measures for what is new and for what is old."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.corpus.tables import Judgements
from model_code.documents import Document
from model_code.drift.measures import RANKS, reciprocal_ranks
from model_code.drift.reference import Question
from model_code.live.searcher import Searcher
from model_code.progress import silent
from model_code.queries.generators import make_generator
from model_code.queries.settings import PseudoQuerySettings
from model_code.retriever import Search


def made_questions(texts: Mapping[str, str], settings: PseudoQuerySettings, seed: int, folder: Path) -> list[Question]:
    """The pseudo-queries of documents, by the generator of held-out ones.

    texts: by document id; one whose text gives no query is left out. folder: where a generator keeps long work.
    """
    made = make_generator(settings.held_out_generator, settings).generate(texts, seed, folder, silent)
    return [Question(one.document_id, one.text, frozenset([one.document_id])) for one in made]


def asked_scores(searcher: Searcher, questions: Sequence[Question]) -> dict[str, float]:
    """The mean over a document's questions of the reciprocal rank at 10 of the first answer, among all that is live."""
    found: dict[str, list[float]] = {}
    scores = reciprocal_ranks(first_ranks(searcher.retriever.search, questions)).tolist()
    for question, score in zip(questions, scores, strict=True):
        found.setdefault(question.document_id, []).append(score)
    return {document: float(np.mean(scores)) for document, scores in found.items()}


def old_scores(searcher: Searcher, questions: Iterable[Question], arrived: Mapping[str, frozenset[str]]) -> np.ndarray:
    """The scores of the old documents that are live as they were, as `asked_scores` of new ones finds them: (n,).

    arrived: by a query that documents came with, those documents, which answer it as well.
    """
    old = searcher.views[0]
    asked = [
        replace(one, answers=one.answers | arrived.get(one.text, frozenset()))
        for one in questions
        if one.document_id in old
    ]
    scores = asked_scores(searcher, asked)
    return np.array([scores[one] for one in sorted(scores)], np.float32)


def first_ranks(search: Search, questions: Sequence[Question], depth: int = RANKS) -> np.ndarray:
    """The rank of the first answer to each question, from 1; 0 if none is among `depth`: (q,).

    One search for all, in which a text that several documents answer is one query.
    """
    texts = list(dict.fromkeys(one.text for one in questions))
    rankings = dict(zip(texts, search(texts, depth) if texts else [], strict=True))
    found = []
    for question in questions:
        ranking = enumerate(rankings[question.text], start=1)
        ranks = (rank for rank, (document, _) in ranking if document in question.answers)
        found.append(next(ranks, 0))
    return np.array(found, np.int64)


def questions_for(judgements: Judgements, documents: Set[str]) -> list[Question]:
    """The judged queries that `documents` answer, once for each of them."""
    return [
        Question(document, judgements.queries[query], frozenset(relevant))
        for query, relevant in judgements.qrels.items()
        for document in sorted(documents & relevant.keys())
    ]


def answers(contents: Iterable[Document]) -> dict[str, frozenset[str]]:
    """The documents that answer each query that documents came with: all that came with this text.

    >>> answers([Document("a", "", "", queries=("how?",)), Document("b", "", "", queries=("how?", "why?"))])["why?"]
    frozenset({'b'})
    """
    found: dict[str, set[str]] = {}
    for content in contents:
        for text in content.queries:
            found.setdefault(text, set()).add(content.document_id)
    return {text: frozenset(documents) for text, documents in found.items()}
