"""Measure costs: query times, index sizes, and the recorded times of training and indexing.

Costs differ from run to run. They are therefore measured on demand and are not part of any stage's
output, because outputs are compared by hash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

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


def cost_table(project: Project, split: str, queries: int) -> pd.DataFrame:
    """Return a row for each built system that can be registered.

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

    rows = []
    for name in (*BASELINES, *settings.fusions, *settings.retrievers):
        encoder, index = settings.build_folders(project.artifacts, name)
        is_built = encoder.is_dir() and index.is_dir()
        if not is_built:
            continue
        retriever = open_retriever(encoder, index, settings.encoder)
        p50, p95 = latency(retriever.search, texts)
        row = [name, f"{p50:.1f}", f"{p95:.1f}", f"{folder_bytes(index):,}"]
        for stage_name in ("train", "index"):
            seconds = recorded_seconds(project, table.get(f"{stage_name}@{name}"))
            cell = NOT_RECORDED if seconds is None else f"{seconds:,.1f}"
            row.append(cell)
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


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
