"""A run judged by qrels, as arrays: the relevance of what each query retrieved by rank, and of the ideal ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model_code.errors import FreshetError

Ranking = Sequence[tuple[str, float]]  # (document id, score), best first
Run = Mapping[str, Ranking]  # query id -> ranking
Qrels = Mapping[str, Mapping[str, int]]  # query id -> document id -> relevance


@dataclass(frozen=True)
class Gains:
    """Relevance by rank for Q queries. A measure is a function of these arrays, so it never sees an id.

    `retrieved` (Q, K) holds the relevance of the document at each rank of the run, `ideal` (Q, R) that of all
    relevant documents, best first; both are filled up with zeros.
    """

    query_ids: tuple[str, ...]
    retrieved: np.ndarray
    ideal: np.ndarray

    @property
    def relevant(self) -> np.ndarray:
        """Number of relevant documents per query, (Q,)."""
        return (self.ideal > 0).sum(axis=1)

    def top(self, cutoff: int | None) -> np.ndarray:
        """The first `cutoff` ranks of the run, (Q, <= cutoff); all of them for None."""
        return self.retrieved[:, :cutoff]


def judge(run: Run, qrels: Qrels) -> Gains:
    """Look up the relevance of every retrieved document, for all queries of `qrels` in the order of their ids.

    Documents without a judgement count as not relevant, queries without a ranking as having retrieved nothing;
    ranked queries without judgements are left out. The order of a ranking is its rank order: scores are not read.

    >>> gains = judge({"q": [("a", 2.0), ("b", 1.0)]}, {"q": {"b": 1, "c": 2}, "unanswered": {"a": 1}})
    >>> gains.retrieved.tolist(), gains.ideal.tolist()
    ([[0.0, 1.0], [0.0, 0.0]], [[2.0, 1.0], [1.0, 0.0]])
    """
    query_ids = tuple(sorted(qrels))
    retrieved, ideal = [], []
    for query_id in query_ids:
        relevance = qrels[query_id]
        documents = [document_id for document_id, _ in run.get(query_id, ())]
        _reject_duplicates(query_id, documents)
        retrieved.append([max(relevance.get(document_id, 0), 0) for document_id in documents])
        ideal.append(sorted((value for value in relevance.values() if value > 0), reverse=True))
    return Gains(query_ids, _padded(retrieved), _padded(ideal))


def _reject_duplicates(query_id: str, documents: list[str]) -> None:
    if len(set(documents)) != len(documents):
        twice = next(document for document in documents if documents.count(document) > 1)
        raise FreshetError(f"query {query_id!r} ranks document {twice!r} twice; a run may name each document once")


def _padded(rows: list[list[int]]) -> np.ndarray:
    width = max(map(len, rows), default=0)
    table = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table
