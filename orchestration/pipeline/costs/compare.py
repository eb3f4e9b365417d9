"""Effectiveness and costs of every built system, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from model_code.corpus.tables import judged, load_corpus
from model_code.errors import FreshetError
from model_code.evaluation.comparison import names_in_order
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import read_json
from model_code.manifest import MANIFEST
from orchestration import parameters
from orchestration.parameters import Parameters
from orchestration.pipeline import stages
from orchestration.pipeline.costs.latency import Times, latencies
from orchestration.pipeline.costs.recorded import StageCost, stage_costs
from orchestration.pipeline.costs.systems import System, open_systems
from orchestration.pipeline.results import load_comparison
from orchestration.project import Project

K, ROUNDS = 10, 3  # documents per timed query, times that each is asked


@dataclass(frozen=True)
class Costs:
    """One system: `value` with its interval on the main metric, and what it costs; None is "not recorded".

    p50_ms, p95_ms: of a query, asked alone.  bytes_per_document: of the index on disk.  train_seconds: 0 for what is
    not trained.  index_seconds: to build the index; index_ms the same per document.  memory_mb: the most that its
    training or indexing held.  searchable_seconds: training and indexing together.
    """

    system: str
    value: float
    low: float
    high: float
    dev: float | None
    p50_ms: float
    p95_ms: float
    bytes_per_document: float
    train_seconds: float | None
    index_seconds: float | None
    index_ms: float | None
    searchable_seconds: float | None
    memory_mb: float | None


@dataclass(frozen=True)
class CostComparison:
    """All systems on the same queries; `absent` were compared before but are not built now."""

    metric: str
    split: str
    source: str
    queries: int  # that the metric is over
    timed: int  # queries whose latency was measured
    documents: int
    systems: tuple[Costs, ...]
    absent: tuple[str, ...]


def compare_costs(project: Project, queries: int = 100) -> CostComparison:
    """Open every built system, time `queries` of the judged queries, look up what MLflow recorded."""
    settings = parameters.load(project.params_file)
    comparison = load_comparison(project)
    opened = {system.name: system for system in open_systems(project, settings)}
    names = [name for name in names_in_order(comparison["systems"], settings.evaluation.references) if name in opened]
    texts = timed_queries(project, comparison["split"], queries)
    times = latencies({name: opened[name].search for name in names}, texts, K, ROUNDS)
    recorded = stage_costs(project, _stages(settings))
    documents = read_json(project.artifacts / "base_index" / "index" / MANIFEST)["documents"]
    rows = [system_costs(opened[name], comparison, times[name], recorded, documents) for name in names]
    facts = {key: comparison[key] for key in ("split", "source", "queries")}
    absent = tuple(sorted(comparison["systems"].keys() - opened.keys()))
    return CostComparison(
        comparison["main_metric"], timed=len(texts), documents=documents, systems=tuple(rows), absent=absent, **facts
    )


def system_costs(
    system: System, comparison: Mapping[str, Any], times: Times, recorded: Mapping[str, StageCost],
    documents: int,
) -> Costs:  # fmt: skip
    """One row: its effectiveness from `comparison.json`, its costs from what was measured and recorded."""
    metric = comparison["main_metric"]
    cell = comparison["systems"][system.name][metric]
    dev = comparison["dev"].get("systems", {}).get(system.name, {}).get(metric)
    known = all(stage in recorded for stage in system.stages)
    seconds = {stage: recorded[stage].seconds for stage in system.stages} if known else {}
    train = sum(value for stage, value in seconds.items() if stage.startswith("train@")) if known else None
    index = sum(seconds.values()) - (train or 0) + system.build_seconds if known else None
    memory = max((recorded[stage].memory_mb for stage in system.stages), default=None) if known else None
    return Costs(
        system=system.name,
        value=cell["value"], low=cell["low"], high=cell["high"], dev=dev and dev["value"],
        p50_ms=times[0], p95_ms=times[1],
        bytes_per_document=system.index_bytes / documents,
        train_seconds=train,
        index_seconds=index,
        index_ms=None if index is None else 1000 * index / documents,
        searchable_seconds=None if index is None else train + index,
        memory_mb=memory,
    )  # fmt: skip


def timed_queries(project: Project, split: str, count: int) -> list[str]:
    """A fixed sample of the queries that the comparison is over."""
    corpus = load_corpus(project.artifacts / "corpus")
    pseudo_queries = pd.read_parquet(project.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    texts = list(sample_queries(judged(corpus, pseudo_queries, split), count).queries.values())
    if not texts:
        raise FreshetError(f"the corpus has no {split} queries any more: run `freshet run` again")
    return texts


def _stages(settings: Parameters) -> list[stages.Stage]:
    return [stage for stage in stages.expand(settings.retrievers) if stage.name in ("base_index", "train", "index")]
