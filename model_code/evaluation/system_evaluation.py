"""Evaluate a system on the judged dev and test queries, and a retriever with its variants; write the evaluation folder.

The folder holds `run.{dev,test}.trec` (the rankings), `scores.parquet` (query_id, split, metric, value) and
`metrics.json` ({"system", "dev": {"queries", metric: mean, ...}, "test": {...}}).

What one build finds, it finds by its own search, and without another training by its kind's others and a hybrid with
BM25: `rrf` fuses its run with BM25's by reciprocal ranks. A variant of the system R is the system `R.NAME`, and its
evaluation folder is `variants/NAME/` in that of R.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import Judgements
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.runs import write_run
from model_code.evaluation.scores import DIGITS
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json
from model_code.fusion import reciprocal_rank_fusion
from model_code.retriever import Retriever, Search


def evaluate_system(
    system: str,
    runs: Mapping[str, Run],
    judgements: Mapping[str, Judgements],
    settings: EvaluationSettings,
    output: Path,
) -> dict[str, Any]:
    """Score the system's run on each split, and write the evaluation folder to `output`.

    `judgements` maps "dev" and "test" to their judged queries (either may have none), on which `runs` were made.
    Returns the content of metrics.json.
    """
    summary: dict[str, Any] = {"system": system}
    tables = []
    for split, judged in judgements.items():
        write_run(output / f"run.{split}.trec", runs[split], tag=system)
        scores = evaluate_run(runs[split], judged.qrels, settings.metrics)
        tables.append(_long_table(split, scores))
        summary[split] = {"queries": len(judged.queries)} | (_means(scores) if judged.queries else {})
    pd.concat(tables, ignore_index=True).to_parquet(output / "scores.parquet", index=False)
    write_json(output / "metrics.json", summary)
    return summary


def search_splits(search: Search, judgements: Mapping[str, Judgements], depth: int) -> dict[str, Run]:
    """The run of a system on each split."""
    return {split: search_queries(search, judged, depth) for split, judged in judgements.items()}


def sampled(judgements: Mapping[str, Judgements], settings: EvaluationSettings) -> dict[str, Judgements]:
    """Each split's queries, `settings.max_queries` at most."""
    return {split: sample_queries(judged, settings.max_queries) for split, judged in judgements.items()}


def search_queries(search: Search, judged: Judgements, depth: int) -> Run:
    """The run of a system on judged queries; systems are asked once, for all queries together."""
    query_ids = list(judged.queries)
    if not query_ids:
        return {}
    return dict(zip(query_ids, search([judged.queries[query_id] for query_id in query_ids], depth), strict=True))


def sample_queries(judged: Judgements, limit: int | None) -> Judgements:
    """At most `limit` queries, those with the smallest SHA-256 of their id: adding queries replaces few of a sample."""
    if limit is None or len(judged.queries) <= limit:
        return judged
    kept = set(sorted(judged.queries, key=lambda query_id: hashlib.sha256(query_id.encode()).digest())[:limit])
    return Judgements(
        queries={query_id: text for query_id, text in judged.queries.items() if query_id in kept},
        qrels={query_id: relevant for query_id, relevant in judged.qrels.items() if query_id in kept},
        source=judged.source,
    )


def _means(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {metric: round(sum(values.values()) / len(values), DIGITS) for metric, values in scores.items()}


def _long_table(split: str, scores: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    columns: Sequence[str] = ("query_id", "split", "metric", "value")
    rows = [(query_id, split, metric, value) for metric, values in scores.items() for query_id, value in values.items()]
    return pd.DataFrame(rows, columns=list(columns)).astype({"value": "float64"})


RRF = "rrf"
Runs = Mapping[str, Run]  # split -> run


def retriever_runs(
    retriever: Retriever, bm25: Runs, judgements: Mapping[str, Judgements], settings: EvaluationSettings
) -> Iterator[tuple[str | None, Runs]]:
    """A retriever's runs on the queries of `judgements`, under None; then, unless `settings` say no, its variants'.

    bm25: BM25's runs on the same queries.
    """
    runs = search_splits(retriever.search, judgements, settings.depth)
    yield None, runs
    if not settings.variants:
        return
    for name, search in retriever.variants().items():
        yield name, search_splits(search, judgements, settings.depth)
    yield RRF, {split: fused(runs[split], bm25[split], settings) for split in judgements}


def fused(run: Run, bm25: Run, settings: EvaluationSettings) -> Run:
    """Two runs on the same queries as one."""
    return {
        query: reciprocal_rank_fusion([list(ranking), list(bm25[query])], settings.depth, settings.fusion_constant)
        for query, ranking in run.items()
    }
