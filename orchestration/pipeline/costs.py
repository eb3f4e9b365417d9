"""Measure costs: query times, index sizes, and the recorded times of training and indexing.

Costs differ from run to run. They are therefore measured on demand and are not part of any stage's
output, because outputs are compared by hash.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from model_code.corpus.tables import load_corpus
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import folder_bytes
from model_code.project import Project
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Search
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.parameters import BASELINES
from orchestration.pipeline import runs, stage_key, stages

# Number of documents that each timed query returns.
TIMED_DEPTH = 10
# Number of queries that are searched before the first timed query, so that caches are filled.
WARM_UP_QUERIES = 3
COLUMNS = (
    "system",
    "query p50 (ms)",
    "query p95 (ms)",
    "index (bytes)",
    "training (s)",
    "indexing (s)",
)
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class SystemCosts:
    """What a system costs.

    Attributes:
        query_p50_ms: Median time of a query, in milliseconds.
        query_p95_ms: 95th percentile of the times, in milliseconds.
        index_bytes: Size of the index on the disk.
        training_seconds: Recorded time of the training. None if there is no record.
        indexing_seconds: Recorded time of the indexing. None if there is no record.
    """

    query_p50_ms: float
    query_p95_ms: float
    index_bytes: int
    training_seconds: float | None
    indexing_seconds: float | None


def measure_costs(project: Project, split: str, queries: int) -> dict[str, SystemCosts]:
    """Return the costs of each built system that can be registered, by its name.

    The times of training and indexing are read from recorded runs with the current code, inputs and
    settings; they are empty without such a run. All baselines are built by one stage, so the time
    of a single baseline is not known.

    Args:
        project: The project.
        split: Name of the split whose queries are timed.
        queries: Number of queries to time. They are searched one at a time.
    """
    corpus = load_corpus(project.artifacts / "corpus")
    texts = list(sample_queries(corpus.judgements(split), queries).queries.values())
    settings = parameters.load(project.params_file)
    table = {stage.address: stage for stage in stages.expand(settings.retrievers, settings.fusions)}

    costs: dict[str, SystemCosts] = {}
    for name in (*BASELINES, *settings.fusions, *settings.retrievers):
        encoder, index = settings.build_folders(project.artifacts, name)
        is_built = encoder.is_dir() and index.is_dir()
        if not is_built:
            continue
        retriever = open_retriever(encoder, index, settings.encoder)
        p50, p95 = latency(retriever.search, texts)
        costs[name] = SystemCosts(
            query_p50_ms=p50,
            query_p95_ms=p95,
            index_bytes=folder_bytes(index),
            training_seconds=recorded_seconds(project, table.get(f"train@{name}")),
            indexing_seconds=recorded_seconds(project, table.get(f"index@{name}")),
        )
    return costs


def cost_table(costs: Mapping[str, SystemCosts]) -> pd.DataFrame:
    """Return the costs of systems as a table of texts, with a row for each system.

    Args:
        costs: Costs by the names of the systems.
    """
    rows = []
    for name, cost in costs.items():
        row = [
            name,
            f"{cost.query_p50_ms:.1f}",
            f"{cost.query_p95_ms:.1f}",
            f"{cost.index_bytes:,}",
            _format_seconds(cost.training_seconds),
            _format_seconds(cost.indexing_seconds),
        ]
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _format_seconds(seconds: float | None) -> str:
    return NOT_RECORDED if seconds is None else f"{seconds:,.1f}"


def latency(search: Search, texts: Sequence[str]) -> tuple[float, float]:
    """Return the median and the 95th percentile of query times, in milliseconds.

    Queries are searched one at a time.
    """
    for text in texts[:WARM_UP_QUERIES]:
        search([text], TIMED_DEPTH)

    milliseconds = []
    for text in texts:
        start = time.perf_counter()
        search([text], TIMED_DEPTH)
        milliseconds.append(1000 * (time.perf_counter() - start))
    p50, p95 = np.percentile(milliseconds, (50, 95))
    return float(p50), float(p95)


def recorded_seconds(project: Project, stage: Stage | None) -> float | None:
    """Return the seconds that a stage took, from a run with the same code, inputs and settings.

    Stages that have just run may not be in MLflow yet. They are recorded first.

    Args:
        project: The project.
        stage: The stage. None: a system that has no such stage.

    Returns:
        The seconds; None if there is no such run.
    """
    if stage is None:
        return None
    # Without its inputs, the stage has no key by which its run could be found.
    for path in stage.inputs.values():
        if not (project.root / path).exists():
            return None

    runs.record_all(project)
    store = runs.run_store(project)
    run = store.find_run(stage_key.read_stage_inputs(stage, project.root).key)
    if run is None:
        return None
    return float(store.client.get_run(run).data.metrics["seconds"])
