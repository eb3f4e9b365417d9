"""Every built system, opened in this process: BM25, the untrained encoder, the retrievers, and their variants."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.system_evaluation import RERANK, RRF
from model_code.fusion import reciprocal_rank_fusion
from model_code.index.bm25 import Bm25
from model_code.index.dense_index import DenseIndex
from model_code.manifest import MANIFEST
from model_code.queries.expansion import expanded_texts, generated_queries
from model_code.retriever import Ranking, Retriever, Search
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.kinds import open_retriever
from orchestration.parameters import BM25_GENERATED, Parameters
from orchestration.project import Project


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
    for name, stages, retriever, index in _retrievers(project, settings):
        own = System(name, retriever.search, folder_bytes(index), stages)
        systems += [
            own,
            *(variants(own, retriever, bm25, bm25_system, settings) if settings.evaluation.variants else ()),
        ]
    return systems


def variants(own: System, retriever: Retriever, bm25: Bm25, bm25_system: System, settings: Parameters) -> list[System]:
    """What is evaluated as `R.NAME`: the retriever's own variants, and its two hybrids, which need BM25's index."""
    evaluation = settings.evaluation

    def rrf(texts: Sequence[str], k: int) -> list[Ranking]:
        both = zip(retriever.search(texts, evaluation.depth), bm25.search(texts, evaluation.depth), strict=True)
        return [reciprocal_rank_fusion(pair, k, evaluation.fusion_constant) for pair in both]

    def rerank(texts: Sequence[str], k: int) -> list[Ranking]:
        candidates = [[d for d, _ in ranking] for ranking in bm25.search(texts, evaluation.rerank_depth)]
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
    Bm25(["first"], ["-"])  # imports what it needs, which is no part of indexing
    start = time.perf_counter()
    bm25 = Bm25(texts, passages["document_id"].tolist(), settings.bm25)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        bm25._index.save(folder, show_progress=False)
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
