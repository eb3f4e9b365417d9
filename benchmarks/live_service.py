"""Start a service over a live collection of any size within seconds.

The encoder is real. Vectors are random unless they are given.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from freshet.client import Client
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
from model_code.encoding.token_signs import BITS_PER_WORD, TokenSigns
from model_code.errors import FreshetError
from model_code.files import write_json, write_text
from model_code.project import Project
from model_code.text.known_queries import by_document
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder, VectorsWithSigns
    from model_code.retrieval.bm25_known import KnownWords
    from model_code.retrieval.index_settings import IndexSettings
    from model_code.retrieval.indexed import NewPassages
    from model_code.text.known_queries import KnownQuery

CLONE = Path(__file__).parents[1]

RETRIEVER = "contrastive"
# Longest wait until a service answers.
START_SECONDS = 300.0
# Largest number of leaves of the synthetic hierarchy.
MAX_LEAVES = 64


def make_project(
    root: Path,
    base: str | Path,
    passages: int,
    texts: Sequence[str] | None = None,
    encoded: VectorsWithSigns | None = None,
    feedback: float | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
    settings: IndexSettings | None = None,
    apply_process: bool = True,
    search_processes: int = 0,
    known: Sequence[KnownQuery] | None = None,
) -> Project:
    """Create a project under `root` with `passages` live documents of one passage each.

    Args:
        root: Folder of the project.
        base: Encoder of the queries.
        passages: Number of documents.
        texts: Texts of the documents.
        encoded: Vectors and tokens of the documents. They are random if not given.
        feedback: If given, documents are searched by a fusion with BM25, and this is the fusion's
            setting `feedback`. None: they are searched by vectors alone.
        fields: Fields of the documents.
        settings: Settings of the dense index. Search is exact if not given.
        apply_process: Whether the service applies changes in a separate process.
        search_processes: Number of processes that search. 0: threads of the service search.
        known: Known queries of the documents, whose words BM25 counts with the weight that a build
            without judged dev queries has. The fusion then also searches headlines. None: the
            documents have no known queries.

    Returns:
        The project. Its default retriever is `RETRIEVER`.
    """
    from benchmarks.opened_build import open_generation_zero
    from model_code.encoding.encoder import Encoder
    from model_code.retrieval.bm25_known import KnownWords
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
    from model_code.retrieval.indexed import NewPassages
    from model_code.stages.known_words import DEFAULT_WEIGHT
    from model_code.text.passages import TextRules

    write_text(
        root / "params.yaml",
        f"retrievers: {{{RETRIEVER}: {{hierarchy_weight: 0}}}}\n"
        f"live: {{apply_process: {str(apply_process).lower()}, "
        f"search_processes: {search_processes}}}\n",
    )
    write_text(root / "dvc.yaml", "stages: {}\n")
    build = root / "build"
    ids = [f"base.{i:07d}" for i in range(passages)]
    encoder = Encoder.load(base)
    encoder.save(build / "encoder")

    if texts is None:
        texts = [f"Document {i} of the base." for i in range(passages)]
    if encoded is None:
        vectors = random_vectors(passages, encoder.dimension)
        tokens = random_tokens(texts, encoder.dimension)
    else:
        vectors, tokens = encoded
    if settings is None:
        settings = IndexSettings(flat_below=ALWAYS_EXACT)

    index = DenseIndex.build(vectors, ids, encoder.fingerprint(), settings, token_signs=tokens)
    index.save(build / "index")
    _write_documents(build / "documents.parquet", ids, texts, fields)
    _write_hierarchy(build / "hierarchy", vectors, ids)

    encoder_folder = build / "encoder"
    index_folder = build / "index"
    if feedback is not None:
        passages_of_build = NewPassages(texts, ids, known=by_document(known or ()))
        words = None if known is None else KnownWords(DEFAULT_WEIGHT, in_length=True)
        encoder_folder, index_folder = _build_fusion(
            build, encoder, vectors, passages_of_build, feedback, words
        )
    known_queries_file = None
    if known is not None:
        known_queries_file = build / KNOWN_QUERIES
        CorpusQueries(tuple(known)).save(known_queries_file)
    # Each document is one passage.
    rules = TextRules(include_title=True, words=0, stride=1)
    open_generation_zero(
        root,
        RETRIEVER,
        encoder=encoder_folder,
        index=index_folder,
        hierarchy=build / "hierarchy",
        documents=build / "documents.parquet",
        provenance={"made by": "bench"},
        text=rules,
        known_queries=known_queries_file,
    )
    return Project(root)


def random_vectors(count: int, dimension: int) -> np.ndarray:
    """Return unit vectors (n, H) float32, always the same ones."""
    vectors = np.random.default_rng(0).standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def random_tokens(texts: Sequence[str], dimension: int) -> TokenSigns:
    """Return signs of one token per word of the texts, always the same ones."""
    token_counts = [len(text.split()) for text in texts]
    starts = np.concatenate([[0], np.cumsum(token_counts)])
    # The signs of a token, one bit per dimension, fill this number of 64-bit integers.
    integers_per_token = math.ceil(dimension / BITS_PER_WORD)
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**BITS_PER_WORD, (starts[-1], integers_per_token), np.uint64)
    return TokenSigns(bits, starts)


def _build_fusion(
    build: Path,
    encoder: Encoder,
    vectors: np.ndarray,
    passages: NewPassages,
    feedback: float,
    words: KnownWords | None,
) -> tuple[Path, Path]:
    """Write a fusion of the dense index and BM25; return its encoder and index folders.

    With known queries, it also searches headlines, like the baseline `untrained` of a build. The
    vectors of the documents stand for those of their headlines.

    Args:
        build: Folder with the dense encoder and index, below which the fusion is written.
        encoder: The encoder.
        vectors: Vectors of the documents, (n, H).
        passages: Texts, ids and known queries of the documents.
        feedback: Weight of pseudo-relevance feedback.
        words: How known queries count as words of BM25. None: they do not.
    """
    from model_code.retrieval import bm25
    from model_code.retrieval.fused import Fusion, ScoreNormalizer, build_folders
    from model_code.retrieval.headline import build_index
    from model_code.retrieval.index_settings import Bm25Settings, IndexSettings

    bm25_folders = (build / "bm25_encoder", build / "bm25_index")
    bm25.build_folders(passages, Bm25Settings(), *bm25_folders, words=words)

    components = {"dense": (build / "encoder", build / "index"), "bm25": bm25_folders}
    weights = {"dense": 1.0, "bm25": 5.0, "dense.late": 1.0}
    normalizers = {"dense": ScoreNormalizer.fit(vectors)}
    if words is not None:
        headlines = build / "headline_index"
        build_index(vectors, passages.document_ids, encoder, IndexSettings(), headlines)
        components["headline"] = (build / "encoder", headlines)
        weights["headline"] = 0.5
        normalizers["headline"] = normalizers["dense"]
    fusion = Fusion(weights, normalizers, feedback=feedback)
    fused_folders = (build / "fused_encoder", build / "fused_index")
    build_folders(components, fusion, *fused_folders)
    return fused_folders


def _write_documents(
    path: Path,
    ids: list[str],
    texts: Sequence[str],
    fields: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Write the build's table of documents. The title of a document is its id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    encoded_fields = ["{}"] * len(ids)
    if fields is not None:
        encoded_fields = [json.dumps(document_fields) for document_fields in fields]
    columns = {
        "document_id": ids,
        "title": ids,
        "text": list(texts),
        "fields": encoded_fields,
        "date": [None] * len(ids),
    }
    pq.write_table(pa.table(columns), path)


def _write_hierarchy(folder: Path, vectors: np.ndarray, ids: list[str]) -> None:
    """Write a hierarchy of one level.

    Passages are assigned to the leaves in turn, because the vectors have no meaning.
    """
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy

    leaf_count = min(MAX_LEAVES, len(ids))
    leaves = (np.arange(len(ids)) % leaf_count).astype(np.int32)
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(leaf_count)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    parents = np.zeros(leaf_count, np.int32)

    folder.mkdir()
    Hierarchy((centroids,), (parents,), leaves).save(folder)
    write_json(folder / DOCUMENT_IDS, ids)


@contextmanager
def served(project: Project, seconds: float = START_SECONDS) -> Iterator[Client]:
    """Run `freshet serve` for `project` on a free port.

    Args:
        project: Project to serve.
        seconds: Longest wait for the service.

    Yields:
        A client of the service.

    Raises:
        FreshetError: If the service is not ready within `seconds`.
    """
    with ServiceProcess(project, seconds) as service:
        yield service.client


class ServiceProcess:
    """The service of a project in a separate process, which can be killed and started again.

    As a context manager, it runs the service until the end of the block.

    Attributes:
        client: A client of the running service. A restart replaces it.
        kills: How often the service was killed.
        ready_since: Time at which the running service answered first, by the monotonic clock.
    """

    client: Client
    ready_since: float

    def __init__(self, project: Project, seconds: float = START_SECONDS) -> None:
        """Prepare to serve a project.

        Args:
            project: Project to serve.
            seconds: Longest wait for the service.
        """
        self.project = project
        self.seconds = seconds
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Id of the process; None if it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the service on a free port, and wait until it answers.

        Environment variables that name another project's state or ledger are removed.

        Raises:
            FreshetError: If the service is not ready in time.
        """
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
        }
        # The service runs the code of this clone.
        python_path = [str(CLONE)]
        if environment.get("PYTHONPATH"):
            python_path.append(environment["PYTHONPATH"])
        environment["PYTHONPATH"] = os.pathsep.join(python_path)

        command = [sys.executable, "-m", "orchestration.cli", "serve", "--port", "0"]
        self._process = subprocess.Popen(
            command, cwd=self.project.root, env=environment, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + self.seconds
        self.client = _wait_for_service(self.project, self._process, deadline)
        self.ready_since = time.monotonic()

    def kill_and_restart(self) -> None:
        """Kill the service by SIGKILL, and start it again."""
        assert self._process is not None
        self.kills += 1
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self) -> None:
        """End the service by SIGTERM, and wait for its end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def _wait_for_service(
    project: Project, process: subprocess.Popen[bytes], deadline: float
) -> Client:
    """Return a client once the service answers.

    Args:
        project: Project of the service.
        process: Process of the service.
        deadline: Time of `time.monotonic` after which the wait ends with an error.

    Raises:
        FreshetError: If the process ends, or the service does not answer in time.
    """
    while True:
        client = find_running_service(Project(project.root))
        if client is not None:
            return client
        if process.poll() is not None or time.monotonic() > deadline:
            raise FreshetError("the service did not start; its message is above")
        time.sleep(0.05)
