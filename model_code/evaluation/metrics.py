"""Metrics by the names the literature gives them ("nDCG@10", "R@100", "MRR@10", "MAP", "hit@1"),
per query.

A run is judged by qrels into arrays; each measure is a short function of these. All agree with
trec_eval (Buckley & Voorhees). Throughout, r_i is the relevance of the document at rank i, R the
number of documents of relevance >= 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from model_code.errors import FreshetError
from model_code.settings import require

Ranking = Sequence[tuple[str, float]]  # (document id, score), best first
Run = Mapping[str, Ranking]  # query id -> ranking
Qrels = Mapping[str, Mapping[str, int]]  # query id -> document id -> relevance


class Gains(NamedTuple):
    """Relevance by rank for Q queries. A measure is a function of these arrays, so it never sees an
    id.

    `retrieved` (Q, K) holds the relevance of the document at each rank of the run, `ideal` (Q, R)
    that of all relevant documents, best first; both are filled up with zeros.
    """

    query_ids: tuple[str, ...]
    retrieved: np.ndarray
    ideal: np.ndarray


def judge(run: Run, qrels: Qrels) -> Gains:
    """Look up the relevance of every retrieved document, for all queries of `qrels` in the order of
    their ids.

    Documents without a judgement count as not relevant, queries without a ranking as having
    retrieved nothing; ranked queries without judgements are left out. The order of a ranking is its
    rank order: scores are not read.

    >>> gains = judge({"q": [("a", 2.0), ("b", 1.0)]}, {"q": {"b": 1, "c": 2}, "unanswered": {"a": 1}})
    >>> gains.retrieved.tolist(), gains.ideal.tolist()
    ([[0.0, 1.0], [0.0, 0.0]], [[2.0, 1.0], [1.0, 0.0]])
    """
    query_ids = tuple(sorted(qrels))
    retrieved, ideal = [], []
    for query_id in query_ids:
        relevance = qrels[query_id]
        documents = [document_id for document_id, _ in run.get(query_id, ())]
        if len(set(documents)) != len(documents):
            twice = next(document for document in documents if documents.count(document) > 1)
            raise FreshetError(
                f"query {query_id!r} ranks document {twice!r} twice; a run may name each document once"
            )
        retrieved.append([max(relevance.get(document_id, 0), 0) for document_id in documents])
        ideal.append(sorted((value for value in relevance.values() if value > 0), reverse=True))
    return Gains(query_ids, _padded(retrieved), _padded(ideal))


def _padded(rows: list[list[int]]) -> np.ndarray:
    width = max(map(len, rows), default=0)
    return np.array([row + [0] * (width - len(row)) for row in rows], dtype=float).reshape(
        len(rows), width
    )


def ndcg(gains: Gains, cutoff: int) -> np.ndarray:
    """Normalised discounted cumulative gain: sum_{i<=k} r_i / log2(i + 1), over that of the ideal
    ranking, (Q,).

    Linear gain as trec_eval's `ndcg_cut` (Järvelin & Kekäläinen 2002), not 2^r - 1.
    """
    return _ratio(_discounted(gains.retrieved[:, :cutoff]), _discounted(gains.ideal[:, :cutoff]))


def recall(gains: Gains, cutoff: int) -> np.ndarray:
    """Share of the R relevant documents that stand in the first k ranks, (Q,)."""
    return _ratio((gains.retrieved[:, :cutoff] > 0).sum(axis=1), (gains.ideal > 0).sum(axis=1))


def hit(gains: Gains, cutoff: int) -> np.ndarray:
    """1 if any of the first k documents is relevant, else 0, (Q,): trec_eval's `success`."""
    return (gains.retrieved[:, :cutoff] > 0).any(axis=1).astype(float)


def reciprocal_rank(gains: Gains, cutoff: int) -> np.ndarray:
    """1 / rank of the first relevant document, 0 if it stands below rank k, (Q,); its mean is
    MRR@k.
    """
    relevant = gains.retrieved[:, :cutoff] > 0
    return (relevant / _ranks(relevant)).max(axis=1, initial=0.0)


def average_precision(gains: Gains, cutoff: int | None = None) -> np.ndarray:
    """Precision at each relevant document's rank, summed over the whole run and divided by R, (Q,);
    its mean is MAP.
    """
    relevant = gains.retrieved[:, :cutoff] > 0
    precision = relevant.cumsum(axis=1) / _ranks(relevant)
    return _ratio((precision * relevant).sum(axis=1), (gains.ideal > 0).sum(axis=1))


def _ranks(table: np.ndarray) -> np.ndarray:
    return np.arange(1, table.shape[1] + 1)


def _discounted(relevance: np.ndarray) -> np.ndarray:
    return (relevance / np.log2(_ranks(relevance) + 1)).sum(axis=1)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


Measure = Callable[[Gains, Any], np.ndarray]  # each query's value (Q,), in [0, 1]
MEASURES: dict[str, Measure] = {"nDCG": ndcg, "R": recall, "MRR": reciprocal_rank, "hit": hit}
METRIC = re.compile(rf"({'|'.join(MEASURES)})@([1-9]\d*)|MAP")


def parse_metric(name: str) -> tuple[Measure, int | None]:
    """A metric's measure and its cutoff: the number of ranks that it looks at, None for the whole
    run.

    >>> parse_metric("nDCG@10")[1], parse_metric("MAP")[1]
    (10, None)
    >>> parse_metric("ndcg")
    Traceback (most recent call last):
    model_code.errors.SettingsError: 'ndcg' is not a metric; write one of nDCG@k, R@k, MRR@k, hit@k, MAP with k >= 1
    """
    match = METRIC.fullmatch(name)
    require(
        match is not None,
        f"{name!r} is not a metric; write one of {'@k, '.join(MEASURES)}@k, MAP with k >= 1",
    )
    assert match is not None
    return (MEASURES[match[1]], int(match[2])) if match[1] else (average_precision, None)


def filter_metrics(names: Iterable[str]) -> list[str]:
    """Those names that are metrics: of a history's row, what was measured on dev.

    >>> filter_metrics(["step", "loss", "nDCG@10"])
    ['nDCG@10']
    """
    return [name for name in names if METRIC.fullmatch(name)]


def evaluate_run(run: Run, qrels: Qrels, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score a run per metric and query id, over all queries of `qrels`; one without a ranking
    scores 0.

    Equal to trec_eval with `-c` on the files that `run_files` writes.

    >>> evaluate_run({"q": [("a", 9.0), ("b", 8.0)]}, {"q": {"b": 1}}, ["MRR@10", "hit@1"])
    {'MRR@10': {'q': 0.5}, 'hit@1': {'q': 0.0}}
    """
    gains, parsed = judge(run, qrels), {name: parse_metric(name) for name in metrics}
    scores = {name: measure(gains, cutoff).tolist() for name, (measure, cutoff) in parsed.items()}
    return {
        name: dict(zip(gains.query_ids, values, strict=True)) for name, values in scores.items()
    }
