"""What effectiveness costs: latency, memory, bytes and time of every built system, measured here or recorded by MLflow.

None of it is an artifact: numbers that differ from run to run stay out of everything that is hashed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from model_code.corpus.tables import judged, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.evaluation.comparison import names_in_order
from model_code.evaluation.system_evaluation import RERANK, RRF, sample_queries
from model_code.files import read_json
from model_code.fusion import reciprocal_rank_fusion
from model_code.index.bm25 import Bm25
from model_code.index.dense_index import DenseIndex
from model_code.manifest import MANIFEST
from model_code.queries.pseudo_queries import expanded_texts, generated_queries
from model_code.retriever import Ranking, Retriever, Search
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.kinds import open_retriever
from orchestration import parameters
from orchestration.parameters import BM25_GENERATED, Parameters
from orchestration.pipeline import runs, stage_key, stages
from orchestration.pipeline.results import load_comparison
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

K, ROUNDS = 10, 3  # documents per timed query, times that each is asked
PERCENTILES = (50, 95)
Times = tuple[float, ...]  # milliseconds, one per percentile


@dataclass(frozen=True)
class System:
    """Something to search: `index_bytes` of what it keeps on disk beside its encoder, `stages` that made it.

    `build_seconds` is what was spent on it in this process, where no stage keeps its index (BM25, and hybrids with it).
    """

    name: str
    search: Search
    index_bytes: int
    stages: tuple[str, ...] = ()
    build_seconds: float = 0.0


def open_systems(project: Project, settings: Parameters) -> list[System]:
    """All systems whose build is there, each followed by its variants; those that are not built are left out."""
    bm25, bm25_system = open_bm25(project, settings)
    systems = [bm25_system]
    if BM25_GENERATED in settings.baselines:
        systems.append(open_bm25(project, settings, generated=True)[1])
    for name, made_by, retriever, index in _retrievers(project, settings):
        system = System(name, retriever.search, folder_bytes(index), made_by)
        systems += [
            system,
            *(variants(system, retriever, bm25, bm25_system, settings) if settings.evaluation.variants else ()),
        ]
    return systems


def variants(own: System, retriever: Retriever, bm25: Bm25, bm25_system: System, settings: Parameters) -> list[System]:
    """What is evaluated as `R.NAME`: the retriever's own variants, and its two hybrids, which need BM25's index."""
    evaluation = settings.evaluation

    def rrf(texts: Sequence[str], k: int) -> list[Ranking]:
        both = zip(retriever.search(texts, evaluation.depth), bm25.search(texts, evaluation.depth), strict=True)
        return [reciprocal_rank_fusion(pair, k, evaluation.fusion_constant) for pair in both]

    def rerank(texts: Sequence[str], k: int) -> list[Ranking]:
        candidates = [[d for d, _ in ranking] for ranking in bm25.search(texts, evaluation.depth)]
        return [ranking[:k] for ranking in retriever.rerank(texts, candidates)]

    hybrid_bytes = own.index_bytes + bm25_system.index_bytes
    return [
        *(System(f"{own.name}.{n}", _variant(retriever, n), own.index_bytes, own.stages) for n in retriever.variants()),
        *(
            System(f"{own.name}.{n}", s, hybrid_bytes, own.stages, bm25_system.build_seconds)
            for n, s in ((RRF, rrf), (RERANK, rerank))
        ),
    ]


def _variant(retriever: Retriever, name: str) -> Search:
    """A variant made anew for each search: those made together share encodings, which then cost nothing."""
    return lambda texts, k: retriever.variants()[name](texts, k)


def open_bm25(project: Project, settings: Parameters, generated: bool = False) -> tuple[Bm25, System]:
    """BM25 over the corpus, built anew, as no stage keeps its index; generated: with the queries that a model wrote."""
    passages = load_corpus(project.artifacts / "corpus").passages
    texts = passage_texts(passages, settings.encoder.include_title)
    if generated:
        table = pd.read_parquet(project.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
        texts = expanded_texts(texts, passages["document_id"].tolist(), generated_queries(table))
    Bm25.build(["first"], ["-"])  # imports what it needs, which is no part of indexing
    start = time.perf_counter()
    bm25 = Bm25.build(texts, passages["document_id"].tolist(), settings.bm25)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        bm25.segments[0].save(Path(folder), {})
        name = BM25_GENERATED if generated else "bm25"
        return bm25, System(name, bm25.search, folder_bytes(Path(folder)), build_seconds=seconds)


def folder_bytes(folder: Path) -> int:
    """The sizes of all files in a folder together."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _retrievers(project: Project, settings: Parameters) -> list[tuple[str, tuple[str, ...], Retriever, Path]]:
    """Name, stages, the opened retriever and its index folder."""
    base = project.artifacts / "base_index" / "index"
    zero_shot = DenseRetriever(Encoder.from_settings(settings.encoder, for_search=True), DenseIndex.load(base))
    found: list[tuple[str, tuple[str, ...], Retriever, Path]] = [("zero_shot", ("base_index",), zero_shot, base)]
    for name in settings.retrievers:
        encoder, index = project.artifacts / "train" / name / "encoder", project.artifacts / "index" / name / "index"
        if encoder.is_dir() and (index / MANIFEST).is_file():
            retriever = open_retriever(encoder, index, settings.encoder)
            found.append((name, (f"train@{name}", f"index@{name}"), retriever, index))
    return found


def latencies(searches: Mapping[str, Search], texts: Sequence[str], k: int, rounds: int) -> dict[str, Times]:
    """p50 and p95 over queries, in milliseconds, of each query's median time over `rounds`.

    The searches take turns round by round, so that a busy minute of the machine hits all alike.
    """
    seconds = {name: np.empty((rounds, len(texts))) for name in searches}
    for search in searches.values():
        search(texts[:1], k)  # what the first search loads is no part of a query
    for round_ in range(rounds):
        for name, search in searches.items():
            for i, text in enumerate(texts):
                start = time.perf_counter()
                search([text], k)
                seconds[name][round_, i] = time.perf_counter() - start
    medians = {name: np.median(table, axis=0) for name, table in seconds.items()}
    return {name: tuple((1000 * np.percentile(table, PERCENTILES)).tolist()) for name, table in medians.items()}


@dataclass(frozen=True)
class StageCost:
    """Wall time, and the most memory that the stage's process held."""

    seconds: float
    memory_mb: float


def stage_costs(project: Project, rows: Iterable[Stage]) -> dict[str, StageCost]:
    """The cost of each stage by its address, where a run of the same code, inputs and settings is recorded.

    What is spooled is recorded first.
    """
    runs.record_all(project)
    store = runs.run_store(project)
    costs = {}
    for stage in rows:
        run = store.find_run(stage_key.read(stage, project.root).key) if _has_inputs(stage, project) else None
        if run is not None:
            metrics = store.client.get_run(run).data.metrics
            costs[stage.address] = StageCost(metrics["seconds"], metrics["peak_memory_mb"])
    return costs


def _has_inputs(stage: Stage, project: Project) -> bool:
    return all((project.root / path).exists() for path in stage.inputs.values())


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
