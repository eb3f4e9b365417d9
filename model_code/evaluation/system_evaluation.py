"""Evaluate one system on the judged dev and test queries, and write its evaluation folder.

The folder holds `run.{dev,test}.trec` (the rankings), `scores.parquet` (query_id, split, metric, value) and
`metrics.json` ({"system", "source", "dev": {"queries", metric: mean, ...}, "test": {...}}).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import Judgements
from model_code.evaluation.gains import Run
from model_code.evaluation.level_accuracy import Nodes, level_accuracy
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.run_files import write_run
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json

Search = Callable[[list[str], int], list[list[tuple[str, float]]]]  # (query texts, k) -> rankings, best first
DIGITS = 6  # of the means in metrics.json; far below any interval, far above the rounding of sums


def evaluate_system(
    system: str,
    runs: Mapping[str, Run],
    judgements: Mapping[str, Judgements],
    nodes: Nodes,
    settings: EvaluationSettings,
    output: Path,
) -> dict[str, Any]:
    """Score the system's run on each split, and write the evaluation folder to `output`.

    `judgements` maps "dev" and "test" to their judged queries (either may have none), on which `runs` were made;
    `nodes` comes from `level_accuracy.document_nodes`. Returns the content of metrics.json.
    """
    summary: dict[str, Any] = {"system": system, "source": next(iter(judgements.values())).source}
    tables = []
    for split, judged in judgements.items():
        write_run(output / f"run.{split}.trec", runs[split], tag=system)
        scores = evaluate_run(runs[split], judged.qrels, settings.metrics)
        scores |= level_accuracy(runs[split], judged.qrels, nodes)
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
