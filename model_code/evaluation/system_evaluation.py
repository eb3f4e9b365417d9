"""Evaluate a system on the judged dev and test queries, and a retriever with its variants; write the evaluation folder.

The folder holds `run.{dev,test}.trec` (the rankings), `scores.parquet` (query_id, split, metric, value) and
`metrics.json` ({"system", "dev": {"queries", metric: mean, ...}, "test": {...}}).

What one build finds, it finds by its own search, and without another training by its kind's others and a hybrid with
BM25: `rrf` fuses its run with BM25's by reciprocal ranks. A variant of the system R is the system `R.NAME`, and its
evaluation folder is `variants/NAME/` in that of R.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
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
    rows: list[tuple[str, str, str, float]] = []
    for split, judged in judgements.items():
        write_run(output / f"run.{split}.trec", runs[split], tag=system)
        scores = evaluate_run(runs[split], judged.qrels, settings.metrics)
        means = {name: round(sum(own.values()) / len(own), DIGITS) for name, own in scores.items() if own}
        summary[split] = {"queries": len(judged.queries)} | means
        rows += [(query, split, name, value) for name, own in scores.items() for query, value in own.items()]
    table = pd.DataFrame(rows, columns=["query_id", "split", "metric", "value"]).astype({"value": "float64"})
    table.to_parquet(output / "scores.parquet", index=False)
    write_json(output / "metrics.json", summary)
    return summary


def search_splits(search: Search, judgements: Mapping[str, Judgements], depth: int) -> dict[str, Run]:
    """The run of a system on each split; it is asked once, for all queries of a split together."""
    return {
        split: dict(zip(judged.queries, search(list(judged.queries.values()), depth), strict=True))
        if judged.queries
        else {}
        for split, judged in judgements.items()
    }


def sampled(judgements: Mapping[str, Judgements], settings: EvaluationSettings) -> dict[str, Judgements]:
    """Each split's queries, `settings.max_queries` at most."""
    return {split: sample_queries(judged, settings.max_queries) for split, judged in judgements.items()}


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
    fuse = partial(reciprocal_rank_fusion, k=settings.depth, constant=settings.fusion_constant)
    yield (
        RRF,
        {
            split: {query: fuse([list(own), list(bm25[split][query])]) for query, own in run.items()}
            for split, run in runs.items()
        },
    )
