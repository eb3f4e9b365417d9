"""What effectiveness costs: times of a query, bytes of the index, and what MLflow recorded of
training and indexing.

None of it is an artifact: numbers that differ from run to run stay out of everything that is
hashed.
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

K, WARM = 10, 3  # documents per timed query; queries before the clock counts
COLUMNS = (
    "system",
    "query p50 (ms)",
    "query p95 (ms)",
    "index (bytes)",
    "training (s)",
    "indexing (s)",
)
UNKNOWN = "not recorded"


def cost_table(project: Project, split: str, queries: int) -> pd.DataFrame:
    """A row per built system that can be registered: `queries` of the split are asked one at a
    time.

    Times of training and indexing are those of the stages' own processes, where a run with today's
    code, inputs and settings is recorded; a baseline is made beside others, and what it costs is
    not told apart.
    """
    corpus = load_corpus(project.artifacts / "corpus")
    texts = list(sample_queries(corpus.judgements(split), queries).queries.values())
    settings = parameters.load(project.params_file)
    table = {stage.address: stage for stage in stages.expand(settings.retrievers, settings.fusions)}
    rows = []
    for name in (*BASELINES, *settings.fusions, *settings.retrievers):
        encoder, index = settings.build_folders(project.artifacts, name)
        if not (encoder.is_dir() and index.is_dir()):
            continue
        p50, p95 = latency(open_retriever(encoder, index, settings.encoder).search, texts)
        spent = [
            recorded_seconds(project, table.get(f"{stage}@{name}")) for stage in ("train", "index")
        ]
        cells = [UNKNOWN if seconds is None else f"{seconds:,.1f}" for seconds in spent]
        rows.append([name, f"{p50:.1f}", f"{p95:.1f}", f"{folder_bytes(index):,}", *cells])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def latency(search: Search, texts: Sequence[str]) -> tuple[float, float]:
    """p50 and p95 over queries that are asked one at a time, in milliseconds."""
    spent = []
    for text in [*texts[:WARM], *texts]:
        start = time.perf_counter()
        search([text], K)
        spent.append(1000 * (time.perf_counter() - start))
    p50, p95 = np.percentile(spent[len(texts[:WARM]) :], (50, 95))
    return float(p50), float(p95)


def recorded_seconds(project: Project, stage: Stage | None) -> float | None:
    """What the stage took where a run of the same code, inputs and settings is recorded; None for
    what is not known.

    What is spooled is recorded first.
    """
    if stage is None or not all((project.root / path).exists() for path in stage.inputs.values()):
        return None
    runs.record_all(project)
    store = runs.run_store(project)
    run = store.find_run(stage_key.read_stage_inputs(stage, project.root).key)
    return None if run is None else float(store.client.get_run(run).data.metrics["seconds"])
