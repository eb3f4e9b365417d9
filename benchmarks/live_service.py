"""Start a service over a live collection of any size within seconds.

The encoder is real. Vectors are random unless they are given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from freshet.client import Client
from model_code.encoding.token_signs import BITS_PER_WORD, TokenSigns
from model_code.errors import FreshetError
from model_code.files import write_json, write_text
from model_code.project import Project
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from model_code.encoding.encoder import WithTokens
    from model_code.retrieval.index_settings import IndexSettings

CLONE = Path(__file__).parents[1]

RETRIEVER, LEAVES = "contrastive", 64


def make_project(
    root: Path,
    base: str | Path,
    passages: int,
    texts: Sequence[str] | None = None,
    encoded: WithTokens | None = None,
    feedback: float | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
    settings: IndexSettings | None = None,
) -> Project:
    """Create a project under `root` with `passages` live documents of one passage each.

    Args:
        root: Folder of the project.
        base: Encoder of the queries.
        passages: Number of documents.
        texts: Texts of the documents.
        encoded: Vectors and tokens of the documents. They are random if not given.
        feedback: If given, documents are searched by a fusion with BM25 with this much feedback.
        fields: Fields of the documents.
        settings: Settings of the dense index. Search is exact if not given.
    """
    from benchmarks.opened_build import open_generation_zero
    from model_code.encoding.encoder import Encoder
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
    from model_code.text.passages import TextRules

    write_text(root / "params.yaml", f"{{retrievers: {{{RETRIEVER}: {{hierarchy_weight: 0}}}}}}\n")
    write_text(root / "dvc.yaml", "stages: {}\n")
    build, ids = root / "build", [f"base.{i:07d}" for i in range(passages)]
    encoder = Encoder.load(base)
    encoder.save(build / "encoder")
    texts = texts or [f"Document {i} of the base." for i in range(passages)]
    vectors, tokens = encoded or (
        random_vectors(passages, encoder.dimension),
        random_tokens(texts, encoder.dimension),
    )
    settings = settings or IndexSettings(flat_below=ALWAYS_EXACT)
    DenseIndex.build(vectors, ids, encoder.fingerprint(), settings, tokens=tokens).save(
        build / "index"
    )
    _write_documents(build / "documents.parquet", ids, texts, fields)
    _write_hierarchy(build / "hierarchy", vectors, ids)
    folders = {name: build / name for name in ("encoder", "index", "hierarchy")}
    if feedback is not None:
        folders |= _fused(build, vectors, ids, texts, feedback)
    # Each document is one passage.
    rules = TextRules(include_title=True, words=0, stride=1)
    open_generation_zero(
        root,
        RETRIEVER,
        **folders,
        documents=build / "documents.parquet",
        provenance={"made by": "bench"},
        text=rules,
    )
    return Project(root)


def random_vectors(count: int, dimension: int) -> np.ndarray:
    """Return unit vectors (n, H) float32, always the same ones."""
    vectors = np.random.default_rng(0).standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def random_tokens(texts: Sequence[str], dimension: int) -> TokenSigns:
    """Return signs of one token per word of the texts, always the same ones."""
    starts = np.cumsum([0, *(len(text.split()) for text in texts)])
    bits = np.random.default_rng(0).integers(
        0, 2**BITS_PER_WORD, (starts[-1], -(-dimension // BITS_PER_WORD)), np.uint64
    )
    return TokenSigns(bits, starts)


def _fused(
    build: Path, vectors: np.ndarray, ids: list[str], texts: Sequence[str], feedback: float
) -> dict[str, Path]:
    from model_code.retrieval import bm25
    from model_code.retrieval.fused import Fusion, ScoreNormalizer, build_folders
    from model_code.retrieval.index_settings import Bm25Settings
    from model_code.retrieval.indexed import NewPassages

    words, made = (
        (build / "bm25_encoder", build / "bm25_index"),
        (build / "fused_encoder", build / "fused_index"),
    )
    bm25.build_folders(NewPassages(texts, ids), Bm25Settings(), *words)
    fusion = Fusion(
        {"dense": 1.0, "bm25": 5.0, "dense.late": 1.0},
        {"dense": ScoreNormalizer.fit(vectors)},
        feedback=feedback,
    )
    build_folders({"dense": (build / "encoder", build / "index"), "bm25": words}, fusion, *made)
    return dict(zip(("encoder", "index"), made, strict=True))


def _write_documents(
    path: Path,
    ids: list[str],
    texts: Sequence[str],
    fields: Sequence[Mapping[str, Any]] | None,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    written_fields = ["{}"] * len(ids)
    if fields is not None:
        written_fields = [json.dumps(document_fields) for document_fields in fields]
    rows = {"document_id": ids, "title": ids, "text": list(texts), "fields": written_fields}
    pq.write_table(pa.table(rows | {"date": [None] * len(ids)}), path)


def _write_hierarchy(folder: Path, vectors: np.ndarray, ids: list[str]) -> None:
    """Write a hierarchy of one level.

    Passages are dealt to leaves in turn, because the vectors have no meaning.
    """
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy

    leaves = (np.arange(len(ids)) % min(LEAVES, len(ids))).astype(np.int32)
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(leaves.max() + 1)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    folder.mkdir()
    Hierarchy((centroids,), (np.zeros(len(centroids), np.int32),), leaves).save(folder)
    write_json(folder / DOCUMENT_IDS, ids)


@contextmanager
def served(project: Project, seconds: float = 300.0) -> Iterator[Client]:
    """Run `freshet serve` for `project` on a free port.

    Environment variables that name another project's state or ledger are removed.

    Raises:
        FreshetError: If the service is not ready within `seconds`.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
    }
    path = os.pathsep.join(filter(None, [str(CLONE), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "orchestration.cli", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=project.root, env=environment | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL
    )
    try:
        yield _ready(project, process, time.monotonic() + seconds)
    finally:
        process.terminate()
        process.wait()


def _ready(project: Project, process: subprocess.Popen[bytes], latest: float) -> Client:
    while (client := find_running_service(Project(project.root))) is None:
        if process.poll() is not None or time.monotonic() > latest:
            raise FreshetError("the service did not start; its message is above")
        time.sleep(0.05)
    return client
