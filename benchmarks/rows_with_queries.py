"""Measure what IncDSI costs: adding rows that bring queries, against the same rows without them.

A row with queries takes longer because its queries are encoded, its vector is solved, and its known
queries are indexed as words. Documents and queries come from a collection in BEIR layout. The rows
that arrive are documents of the collection with at least three training queries. All other
training queries are known queries of the build, so that they limit the vectors of the new rows.

If the collection is too small for the wanted number of passages, further documents join halves of
two documents. Their vectors are the mean of both vectors and some noise. Nobody asked for them.

The measured time is processor seconds of this process, which other work on the machine changes
little. Rows with and without queries are added to two copies of one collection. The two kinds
alternate in the order A B B A, so that a slower half of the run counts for both.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import BASE
from benchmarks.live_service import RETRIEVER, make_project, random_tokens
from benchmarks.measurement import row_below, row_without_goal, skipped
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.retrieval.index_settings import IndexSettings
from model_code.text.known_queries import KnownQuery, QuerySource

# Number of queries that each arriving row brings.
QUERIES_PER_ROW = 3
# Goal: the largest ratio of the time of rows with queries to the time of rows without.
MAX_RATIO = 1.3
# Rows that are added before the measurement. They load libraries and compute the constraints.
WARM_ROWS = 20
# Length of the noise in the vector of a document that joins two halves.
NOISE = 0.5
# Documents that are encoded between two messages of progress.
ENCODED_AT_ONCE = 2_000


def rows(
    data: str | Path | None = None,
    passages: int = 10_000,
    arrivals: int = 1_000,
    base: str | Path = BASE,
) -> list[dict[str, Any]]:
    """Measure the addition of rows with and without queries.

    Args:
        data: Folder of a collection in BEIR layout, with training judgements.
        passages: Number of documents of the collection before rows arrive.
        arrivals: Number of rows that arrive.
        base: Encoder.

    Raises:
        FreshetError: If the collection has too few documents with training queries.
    """
    label = f"{arrivals:,} rows with {QUERIES_PER_ROW} queries, {passages:,} documents"
    if data is None:
        return [skipped(label, "--data names no collection in BEIR layout")]
    corpus = Corpus.read(Path(data), passages, arrivals + WARM_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        project = make_collection(Path(folder) / "project", corpus, passages, base)
        copy = Path(folder) / "copy"
        shutil.copytree(project.root, copy)
        seconds = measure(project, Project(copy), corpus.new_rows)
    seconds["encoding of queries"] = time_query_encoding(corpus.new_rows[WARM_ROWS:], base)

    without_queries = seconds["without queries"]
    with_queries = seconds["with queries"]
    encoding = seconds["encoding of queries"]
    return [
        row_below(f"{label}, s", with_queries, without_queries, most=MAX_RATIO),
        row_without_goal(
            f"{label}, without the encoding of queries, s", with_queries - encoding, without_queries
        ),
    ]


@dataclass(frozen=True)
class Corpus:
    """The documents of a collection, split into those of the build and those that arrive.

    Attributes:
        ids: Ids of the documents of the build.
        texts: Texts of the documents of the build.
        known: Training queries of the documents of the build.
        new_rows: Rows that arrive, with the keys `id`, `title`, `text` and `queries`.
    """

    ids: list[str]
    texts: list[str]
    known: list[KnownQuery]
    new_rows: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path, most: int, arrivals: int) -> Corpus:
        """Read a collection in BEIR layout.

        Args:
            folder: Folder with `corpus.jsonl.gz`, `queries.jsonl.gz` and `qrels/train.tsv`.
            most: Largest number of documents of the build.
            arrivals: Number of documents that arrive.

        Raises:
            FreshetError: If too few documents have enough training queries.
        """
        from experiments.asked.data import Dataset

        dataset = Dataset.read(folder)
        queries: dict[int, list[str]] = defaultdict(list)
        for query_id, relevant in dataset.qrels["train"].items():
            for number in relevant:
                queries[number].append(dataset.queries[query_id])

        asked = [number for number in queries if len(queries[number]) >= QUERIES_PER_ROW]
        if len(asked) < arrivals:
            raise FreshetError(
                f"{folder} has {len(asked):,} documents with {QUERIES_PER_ROW} training queries, "
                f"but the benchmark needs {arrivals:,}"
            )
        random = np.random.default_rng(0)
        arriving = set(random.choice(sorted(asked), arrivals, replace=False).tolist())

        new_rows = []
        for number in sorted(arriving):
            own_queries = queries[number][:QUERIES_PER_ROW]
            new_rows.append(
                {
                    "id": f"new.{number}",
                    "title": "",
                    "text": dataset.texts[number],
                    "queries": own_queries,
                }
            )

        staying = [number for number in range(len(dataset.ids)) if number not in arriving]
        ids: list[str] = []
        texts: list[str] = []
        known: list[KnownQuery] = []
        for position, number in enumerate(staying[:most]):
            # The names that `make_project` gives its documents.
            document_id = f"base.{position:07d}"
            ids.append(document_id)
            texts.append(dataset.texts[number])
            for text in queries.get(number, ()):
                known.append(KnownQuery(document_id, text, QuerySource.QRELS))
        return cls(ids, texts, known, new_rows)


def make_collection(root: Path, corpus: Corpus, passages: int, base: str | Path) -> Project:
    """Build a live collection: a fusion of vectors, late interaction, BM25 and headlines.

    Args:
        root: Folder of the project.
        corpus: Documents and known queries of the build.
        passages: Number of documents. Those that the corpus lacks are joined from two halves.
        base: Encoder.
    """
    from model_code.encoding.encoder import Encoder

    encoder = Encoder.load(base)
    parts: list[np.ndarray] = []
    for start in range(0, len(corpus.texts), ENCODED_AT_ONCE):
        parts.append(
            encoder.encode_documents_by_last_layer(corpus.texts[start : start + ENCODED_AT_ONCE])
        )
        print(f"{start + len(parts[-1]):,} documents encoded", file=sys.stderr, flush=True)
    vectors = np.concatenate(parts)

    texts = list(corpus.texts)
    missing = passages - len(texts)
    if missing > 0:
        joined_texts, joined_vectors = join_halves(texts, vectors, missing)
        texts.extend(joined_texts)
        vectors = np.concatenate([vectors, joined_vectors])

    # Late interaction takes no part in the solution, so its tokens may be random.
    tokens = random_tokens(texts, encoder.dimension)
    return make_project(
        root,
        base,
        len(texts),
        texts,
        (vectors, tokens),
        feedback=0.3,
        settings=IndexSettings(),
        known=corpus.known,
    )


def join_halves(
    texts: Sequence[str], vectors: np.ndarray, count: int
) -> tuple[list[str], np.ndarray]:
    """Make documents from the first half of one document and the second half of another.

    Args:
        texts: Texts of n documents.
        vectors: Unit vectors (n, H) of these documents.
        count: Number of documents to make.

    Returns:
        `count` texts, and unit vectors (count, H): the mean of both documents' vectors plus noise.
    """
    random = np.random.default_rng(1)
    pairs = random.integers(0, len(texts), (count, 2))
    joined_texts: list[str] = []
    for first, second in pairs.tolist():
        first_words = texts[first].split()
        second_words = texts[second].split()
        halves = first_words[: len(first_words) // 2] + second_words[len(second_words) // 2 :]
        joined_texts.append(" ".join(halves))

    noise = random.standard_normal((count, vectors.shape[1]), np.float32)
    noise *= np.float32(NOISE / vectors.shape[1] ** 0.5)
    joined = (vectors[pairs[:, 0]] + vectors[pairs[:, 1]]) / 2 + noise
    return joined_texts, joined / np.linalg.norm(joined, axis=1, keepdims=True)


def measure(
    plain: Project, asked: Project, new_rows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Add the same rows to two equal collections, with queries to one and without to the other.

    Args:
        plain: Project that gets the rows without queries.
        asked: Project that gets the rows with queries.
        new_rows: The rows. The first `WARM_ROWS` of them are added before the measurement.

    Returns:
        Processor seconds by the kind of rows: "without queries" and "with queries".
    """
    plain_index = LiveIndex(plain, RETRIEVER)
    asked_index = LiveIndex(asked, RETRIEVER)
    rows_without_queries = []
    for new_row in new_rows:
        rows_without_queries.append({**new_row, "queries": []})
    add(plain_index, rows_without_queries[:WARM_ROWS])
    add(asked_index, new_rows[:WARM_ROWS])

    middle = WARM_ROWS + (len(new_rows) - WARM_ROWS) // 2
    first_half = slice(WARM_ROWS, middle)
    second_half = slice(middle, None)
    seconds = {
        "without queries": add(plain_index, rows_without_queries[first_half]),
        "with queries": add(asked_index, new_rows[first_half]),
    }
    seconds["with queries"] += add(asked_index, new_rows[second_half])
    seconds["without queries"] += add(plain_index, rows_without_queries[second_half])
    return seconds


def add(index: LiveIndex, new_rows: Sequence[Mapping[str, Any]]) -> float:
    """Add rows, make them searchable, and return the processor seconds."""
    started = time.process_time()
    index.receive(new_rows, "bench")
    index.apply()
    return time.process_time() - started


def time_query_encoding(new_rows: Sequence[Mapping[str, Any]], base: str | Path) -> float:
    """Return the processor seconds to encode the queries of rows."""
    from model_code.encoding.encoder import Encoder

    queries = [query for new_row in new_rows for query in new_row["queries"]]
    encoder = Encoder.load(base)
    # The first call loads libraries.
    encoder.encode_queries(queries[:8])
    started = time.process_time()
    encoder.encode_queries(queries)
    return time.process_time() - started
