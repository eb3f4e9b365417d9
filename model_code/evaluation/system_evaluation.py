"""Evaluate a system on the judged queries of dev, gate and test, and write the evaluation folder.

The folder holds `run.{dev,gate,test}.trec` (the rankings), `scores.parquet` (query_id, split,
metric, value) and `metrics.json` ({"system", "dev": {"queries", metric: mean, ...}, "gate": {...},
"test": {...}}).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import Corpus, Judgements
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.runs import write_run
from model_code.evaluation.scores import EVALUATED_SPLITS, SCORE_DECIMALS
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json
from model_code.retrieval.protocol import Ranking, Search
from model_code.retrieval.top_k import rank_best_first


def evaluate_system(
    system: str,
    runs: Mapping[str, Run],
    judgements: Mapping[str, Judgements],
    settings: EvaluationSettings,
    output: Path,
) -> dict[str, Any]:
    """Score the system's run on each split, and write the evaluation folder to `output`.

    `judgements` maps each split to its judged queries (any may have none), on which `runs` were
    made. Returns the content of metrics.json.
    """
    summary: dict[str, Any] = {"system": system}
    rows: list[tuple[str, str, str, float]] = []
    for split, part in judgements.items():
        write_run(output / f"run.{split}.trec", runs[split], tag=system)
        scores = evaluate_run(runs[split], part.qrels, settings.metrics)
        means = {
            name: round(sum(values.values()) / len(values), SCORE_DECIMALS)
            for name, values in scores.items()
            if values
        }
        summary[split] = {"queries": len(part.queries)} | means
        rows += [
            (query, split, name, value)
            for name, values in scores.items()
            for query, value in values.items()
        ]
    table = pd.DataFrame(rows, columns=["query_id", "split", "metric", "value"]).astype(
        {"value": "float64"}
    )
    table.to_parquet(output / "scores.parquet", index=False)
    write_json(output / "metrics.json", summary)
    return summary


def search_splits(
    search: Search, judgements: Mapping[str, Judgements], depth: int
) -> dict[str, Run]:
    """The run of a system on each split; it is asked once, for all queries of a split together."""
    return {
        split: dict(zip(part.queries, search(list(part.queries.values()), depth), strict=True))
        if part.queries
        else {}
        for split, part in judgements.items()
    }


def sample_judgements(corpus: Corpus, settings: EvaluationSettings) -> dict[str, Judgements]:
    """The judged queries of each split, `settings.max_queries` of each at most."""
    return {
        split: sample_queries(corpus.judgements(split), settings.max_queries)
        for split in EVALUATED_SPLITS
    }


def sample_queries(judged: Judgements, limit: int | None) -> Judgements:
    """At most `limit` queries, those with the smallest SHA-256 of their id: adding queries replaces
    few of a sample.
    """
    if limit is None or len(judged.queries) <= limit:
        return judged
    sample = set(
        sorted(judged.queries, key=lambda query_id: hashlib.sha256(query_id.encode()).digest())[
            :limit
        ]
    )
    groups = {name: getattr(judged, name).items() for name in ("queries", "qrels", "answers")}
    return replace(
        judged,
        **{name: {key: own for key, own in rows if key in sample} for name, rows in groups.items()},
    )


def reciprocal_rank_fusion(rankings: Iterable[Ranking], k: int, constant: int = 60) -> Ranking:
    """The k best documents by RRF(d) = sum over rankings of 1 / (constant + rank of d) (Cormack et
    al. 2009, eq. 1).

    By ranks alone, so that scores of any scale go together. Ranks count from 1, and a ranking
    without d adds nothing. Ties go to the smaller document id.

    >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5), ("c", 0.4)]], k=2)
    [('b', 0.0325), ('a', 0.0164)]
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (document, _) in enumerate(ranking, start=1):
            scores[document] += 1 / (constant + rank)
    return rank_best_first(scores.items(), k)
