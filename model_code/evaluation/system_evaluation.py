"""Evaluate a system on the judged queries of dev, gate and test, and write its evaluation folder.

The folder holds:

- `run.{dev,gate,test}.trec`: the rankings,
- `scores.parquet`: query_id, split, metric, value, with_known,
- `metrics.json`: {"system", "dev": {"queries", metric: mean, ...}, "gate": {...}, "test": {...},
  "groups": {split: {"with_known": {"queries", metric: mean, ...},
  "without_known": {...}}}}, where a group without queries is left out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import Corpus, Judgements
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.runs import write_run
from model_code.evaluation.scores import (
    EVALUATED_SPLITS,
    SCORE_DECIMALS,
    WITH_KNOWN,
    WITHOUT_KNOWN,
)
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json
from model_code.retrieval.protocol import Ranking, Search
from model_code.retrieval.top_k import rank_best_first

SCORE_COLUMNS = {
    "query_id": "object",
    "split": "object",
    "metric": "object",
    "value": "float64",
    WITH_KNOWN: "bool",
}


def evaluate_system(
    system: str,
    runs: Mapping[str, Run],
    judgements: Mapping[str, Judgements],
    settings: EvaluationSettings,
    output: Path,
) -> dict[str, Any]:
    """Score a system's run on each split and write the evaluation folder.

    Args:
        system: Name of the system.
        runs: The run on each split.
        judgements: The judged queries of each split, which `runs` has rankings of. A split may have
            no queries.
        settings: Settings with the metrics to compute.
        output: The evaluation folder. It must exist.

    Returns:
        The content of `metrics.json`.
    """
    summary: dict[str, Any] = {"system": system}
    groups: dict[str, Any] = {}
    rows: list[tuple[str, str, str, float, bool]] = []
    for split, judged in judgements.items():
        write_run(output / f"run.{split}.trec", runs[split], tag=system)
        scores = evaluate_run(runs[split], judged.graded(), settings.metrics)
        summary[split] = _means(scores, list(judged.queries))
        groups[split] = _group_means(scores, judged)
        for metric, values in scores.items():
            for query, value in values.items():
                rows.append((query, split, metric, value, query in judged.with_known))

    summary["groups"] = groups
    table = pd.DataFrame(rows, columns=list(SCORE_COLUMNS)).astype(SCORE_COLUMNS)
    table.to_parquet(output / "scores.parquet", index=False)
    write_json(output / "metrics.json", summary)
    return summary


def _group_means(
    scores: Mapping[str, Mapping[str, float]], judged: Judgements
) -> dict[str, dict[str, float]]:
    """Return the mean metrics of two groups of queries, without a group that is empty.

    A query belongs to the first group if one of its relevant documents has a known query.

    Args:
        scores: Score by metric and query id.
        judged: The judged queries.
    """
    with_known = [query for query in judged.queries if query in judged.with_known]
    others = [query for query in judged.queries if query not in judged.with_known]

    means = {}
    if with_known:
        means[WITH_KNOWN] = _means(scores, with_known)
    if others:
        means[WITHOUT_KNOWN] = _means(scores, others)
    return means


def _means(scores: Mapping[str, Mapping[str, float]], queries: list[str]) -> dict[str, float]:
    """Return the number of the given queries, and the mean of each metric over them."""
    means: dict[str, float] = {"queries": len(queries)}
    if queries:
        for metric, values in scores.items():
            total = sum(values[query] for query in queries)
            means[metric] = round(total / len(queries), SCORE_DECIMALS)
    return means


def search_splits(
    search: Search,
    judgements: Mapping[str, Judgements],
    depth: int,
    documents: Container[str] = (),
) -> dict[str, Run]:
    """Return a system's run on each split. All queries of a split are searched in one call.

    If a query is a document of the corpus (see `own_document_queries`), this document is left out
    of its ranking, as in BEIR.

    Args:
        search: Search of the system.
        judgements: The judged queries of each split.
        depth: Number of documents per query.
        documents: Ids of the documents of the corpus.
    """
    runs: dict[str, Run] = {}
    for split, judged in judgements.items():
        with_own_document = own_document_queries(judged, documents)
        # One document may be left out of a ranking, so one more is searched.
        searched_depth = depth + 1 if with_own_document else depth
        rankings: Iterable[Ranking] = ()
        if judged.queries:
            rankings = search(list(judged.queries.values()), searched_depth)
        run: dict[str, Ranking] = {}
        for query, ranking in zip(judged.queries, rankings, strict=True):
            if query in with_own_document:
                ranking = [entry for entry in ranking if entry[0] != query]
            run[query] = ranking[:depth]
        runs[split] = run
    return runs


def own_document_queries(judged: Judgements, documents: Container[str]) -> set[str]:
    """Return the queries that are documents of the corpus themselves, as in ArguAna and Quora.

    Such a query has the id of its document, and would find this document first. If the document
    with the query's id is judged as an answer, the query is not returned. The equal ids are then a
    coincidence.

    Args:
        judged: The judged queries.
        documents: Ids of the documents of the corpus.
    """
    own: set[str] = set()
    for query in judged.queries:
        grade_of_own_document = judged.qrels.get(query, {}).get(query, 0)
        if query in documents and grade_of_own_document <= 0:
            own.add(query)
    return own


def sample_judgements(corpus: Corpus, settings: EvaluationSettings) -> dict[str, Judgements]:
    """Return a sample of the judged queries of each split, at most `settings.max_queries` each."""
    return {
        split: sample_queries(corpus.judgements(split), settings.max_queries)
        for split in EVALUATED_SPLITS
    }


def sample_queries(judged: Judgements, limit: int | None) -> Judgements:
    """Return a sample of at most `limit` queries: those with the smallest SHA-256 of their id.

    If queries are added later, most queries of the sample stay the same.
    """
    if limit is None or len(judged.queries) <= limit:
        return judged

    by_hash = sorted(judged.queries, key=lambda query: hashlib.sha256(query.encode()).digest())
    sample = set(by_hash[:limit])
    return replace(
        judged,
        queries={query: text for query, text in judged.queries.items() if query in sample},
        qrels={query: grades for query, grades in judged.qrels.items() if query in sample},
        answers={query: texts for query, texts in judged.answers.items() if query in sample},
    )


def reciprocal_rank_fusion(rankings: Iterable[Ranking], k: int, constant: int = 60) -> Ranking:
    """Fuse rankings by RRF(d) = sum over rankings of 1 / (constant + rank of d).

    Only ranks are used, so scores may have any scale. Ranks start at 1. A ranking that does not
    contain d adds nothing. Equal scores are ordered by ascending document id. Source: Cormack et
    al. (2009), equation 1.

    Args:
        rankings: Rankings of one query.
        k: Number of documents to return.
        constant: Constant added to ranks. The larger it is, the smaller is the lead of first ranks.

    Returns:
        The k best documents with their fused scores.

    >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5), ("c", 0.4)]], k=2)
    [('b', 0.0325), ('a', 0.0164)]
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (document, _) in enumerate(ranking, start=1):
            scores[document] += 1 / (constant + rank)
    return rank_best_first(scores.items(), k)
