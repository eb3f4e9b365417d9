"""Metrics by the names the literature gives them ("nDCG@10", "R@100", "MRR@10", "MAP", "hit@1"), per query.

A run is judged by qrels into arrays; each measure is a short function of these. All agree with trec_eval (Buckley &
Voorhees). Throughout, r_i is the relevance of the document at rank i, R the number of documents of relevance >= 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.settings import require

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


def ndcg(gains: Gains, cutoff: int) -> np.ndarray:
    """Normalised discounted cumulative gain: sum_{i<=k} r_i / log2(i + 1), over that of the ideal ranking, (Q,).

    Linear gain as trec_eval's `ndcg_cut` (Järvelin & Kekäläinen 2002), not 2^r - 1.
    """
    return _ratio(_discounted(gains.top(cutoff)), _discounted(gains.ideal[:, :cutoff]))


def recall(gains: Gains, cutoff: int) -> np.ndarray:
    """Share of the R relevant documents that stand in the first k ranks, (Q,)."""
    return _ratio((gains.top(cutoff) > 0).sum(axis=1), gains.relevant)


def hit(gains: Gains, cutoff: int) -> np.ndarray:
    """1 if any of the first k documents is relevant, else 0, (Q,): trec_eval's `success`."""
    return (gains.top(cutoff) > 0).any(axis=1).astype(float)


def reciprocal_rank(gains: Gains, cutoff: int) -> np.ndarray:
    """1 / rank of the first relevant document, 0 if it stands below rank k, (Q,); its mean is MRR@k."""
    relevant = gains.top(cutoff) > 0
    return (relevant / _ranks(relevant)).max(axis=1, initial=0.0)


def average_precision(gains: Gains, cutoff: int | None = None) -> np.ndarray:
    """Precision at each relevant document's rank, summed over the whole run and divided by R, (Q,); its mean is MAP."""
    relevant = gains.top(cutoff) > 0
    precision = relevant.cumsum(axis=1) / _ranks(relevant)
    return _ratio((precision * relevant).sum(axis=1), gains.relevant)


def _ranks(table: np.ndarray) -> np.ndarray:
    return np.arange(1, table.shape[1] + 1)


def _discounted(relevance: np.ndarray) -> np.ndarray:
    return (relevance / np.log2(_ranks(relevance) + 1)).sum(axis=1)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


MEASURES: dict[str, Callable[[Gains, Any], np.ndarray]] = {
    "nDCG": ndcg,
    "R": recall,
    "MRR": reciprocal_rank,
    "MAP": average_precision,
    "hit": hit,
}
WHOLE_RUN = {"MAP"}  # measures that take no cutoff


@dataclass(frozen=True)
class Metric:
    """A measure and its cutoff: the number of ranks it looks at, None for the whole run."""

    measure: str
    cutoff: int | None = None

    @classmethod
    def parse(cls, name: str) -> Metric:
        """Read a metric's name.

        >>> Metric.parse("nDCG@10")
        Metric(measure='nDCG', cutoff=10)
        >>> Metric.parse("ndcg")
        Traceback (most recent call last):
        model_code.errors.SettingsError: 'ndcg' is not a metric; write one of nDCG@k, R@k, MRR@k, MAP, hit@k with k >= 1
        """
        match = re.fullmatch(r"(?P<measure>[A-Za-z]+)(@(?P<cutoff>[1-9]\d*))?", name)
        measure, cutoff = (match["measure"], match["cutoff"]) if match else (None, None)
        known = measure in MEASURES and (cutoff is None) == (measure in WHOLE_RUN)
        shapes = ", ".join(key if key in WHOLE_RUN else f"{key}@k" for key in MEASURES)
        require(known, f"{name!r} is not a metric; write one of {shapes} with k >= 1")
        return cls(str(measure), int(cutoff) if cutoff else None)

    def __str__(self) -> str:
        """The name that `parse` reads."""
        return self.measure if self.cutoff is None else f"{self.measure}@{self.cutoff}"

    def scores(self, gains: Gains) -> np.ndarray:
        """This metric for each query, (Q,), in [0, 1]."""
        return MEASURES[self.measure](gains, self.cutoff)


def evaluate_run(run: Run, qrels: Qrels, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score a run per metric and query id, over all queries of `qrels`; one without a ranking scores 0.

    Equal to trec_eval with `-c` on the files that `run_files` writes.

    >>> evaluate_run({"q": [("a", 9.0), ("b", 8.0)]}, {"q": {"b": 1}}, ["MRR@10", "hit@1"])
    {'MRR@10': {'q': 0.5}, 'hit@1': {'q': 0.0}}
    """
    gains = judge(run, qrels)
    scores = {name: Metric.parse(name).scores(gains).tolist() for name in metrics}
    return {name: dict(zip(gains.query_ids, values, strict=True)) for name, values in scores.items()}
