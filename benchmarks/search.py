"""Compare vector search with FAISS, and the untrained fusion with its dense component.

Three comparisons use FAISS:

- An exact index of ours against brute force, the floor of exact search.
- The index that `auto` chooses for large collections against HNSW.
- The inverted file that a hierarchy of the same passages provides against faiss's inverted file.

Our searches also break ties by document id. The fusion is measured with feedback: a second scoring
after the query vector has moved towards the best documents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import mixed_texts
from benchmarks.machine_limits import read_rate
from benchmarks.measurement import all_seconds, row, row_below, row_without_goal
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.index_settings import ALWAYS_EXACT, Bm25Settings, IndexSettings

FINGERPRINT = "benchmark"
BASE = EncoderSettings().base
# Number of passages that `large` searches.
LARGE_SIZE = 1_000_000
# Approximate searches are compared at this recall.
RECALL = 0.99
# Goals of an exact index against faiss flat: queries per second, and latency of one query.
MIN_EXACT_SPEED = 0.8
MAX_EXACT_LATENCY = 1.25
# Goal of the index that `auto` chooses: its speed against faiss flat.
MIN_APPROXIMATE_SPEED = 2.0
# Goal of the fusion: its latency against its dense component.
MAX_FUSION_LATENCY = 1.3
# Iterations of k-means for both inverted files, which is faiss's default.
ITERATIONS = 10
# Standard deviation of synthetic vectors around their centre, in each dimension.
NOISE = 0.7
# Queries that are timed against one read of all vectors.
READING_QUERIES = 20
# Takes queries (q, H) and returns row numbers of vectors (q, k).
Search = Callable[[np.ndarray], np.ndarray]


def rows(
    passages: int = 100_000,
    dimension: int = 384,
    queries: int = 200,
    k: int = 10,
    rounds: int = 3,
    large: bool = False,
    documents: int = 10_000,
    base: str | Path = BASE,
) -> list[dict[str, Any]]:
    """Measure latency of single queries, queries per second in a batch, and recall if not exact.

    Every system gets every query in turn, `rounds` times.

    Args:
        passages: Number of vectors.
        dimension: Numbers per vector.
        queries: Number of queries.
        k: Hits per query.
        rounds: Runs of every query.
        large: Search a million passages.
        documents: Documents of the fusion.
        base: Encoder of the fusion.
    """
    if large:
        passages = LARGE_SIZE
    vectors, query_vectors = clustered_vectors(passages, dimension, queries)
    size = f"{passages:,} x {dimension}"

    exact = _exact_search(vectors, k)
    faiss_flat = _faiss_flat_search(vectors, k)
    # Rows (q, k) of the true neighbours, by which recall is measured.
    nearest = faiss_flat(query_vectors)
    automatic = _automatic_search(vectors, k)
    hnsw = _tune("efSearch", _build_hnsw(vectors), query_vectors, nearest, k)
    hierarchy_file, faiss_file = _inverted_files(vectors)
    hierarchy_lists = _tune("nprobe", hierarchy_file, query_vectors, nearest, k)
    faiss_lists = _tune("nprobe", faiss_file, query_vectors, nearest, k)

    results = []
    label = f"{size}, exact, against faiss flat"
    results.extend(
        _latency_rows(label, exact, faiss_flat, query_vectors, rounds, MAX_EXACT_LATENCY)
    )
    results.append(_batch_row(label, exact, faiss_flat, query_vectors, rounds, MIN_EXACT_SPEED))
    results.append(_reading_row(size, exact, query_vectors, vectors.nbytes))

    automatic_recall = recall(automatic(query_vectors), nearest)
    results.append(row(f"{size}, index by default: recall@{k}", automatic_recall, 1.0, goal=RECALL))
    comparisons = (
        ("index by default, against faiss flat", automatic, faiss_flat, 1 / MIN_APPROXIMATE_SPEED),
        (f"index by default, against HNSW at its recall {RECALL}", automatic, hnsw, 1.0),
        (
            f"the hierarchy's lists, against faiss's at recall {RECALL}",
            hierarchy_lists,
            faiss_lists,
            1.0,
        ),
    )
    for comparison, ours, peer, most in comparisons:
        label = f"{size}, {comparison}"
        results.extend(_latency_rows(label, ours, peer, query_vectors, rounds, most))

    results.extend(_fusion_rows(documents, queries, k, rounds, base))
    return results


def _fusion_rows(
    documents: int, queries: int, k: int, rounds: int, base: str | Path
) -> list[dict[str, Any]]:
    """Compare the fusion with its dense component, including the encoding of the queries.

    Args:
        documents: Number of documents.
        queries: Number of queries.
        k: Hits per query.
        rounds: Runs of every query.
        base: Encoder of the queries.
    """
    encoder = Encoder.load(base, 64, for_search=True)
    texts = mixed_texts(documents)
    vectors, _ = clustered_vectors(documents, encoder.dimension, 1)
    ids = _document_ids(vectors)

    dense = DenseRetriever(encoder, DenseIndex.build(vectors, ids, encoder.fingerprint()))
    bm25 = Bm25Retriever(Bm25Segment.build(texts, ids, "english"), Bm25Settings())
    fusion = Fusion(
        {"dense": 1.0, "bm25": 5.0}, {"dense": ScoreNormalizer.fit(vectors)}, feedback=0.3
    )
    fused = FusedSearch({"dense": dense, "bm25": bm25}, fusion)

    # `_latency_rows` takes one row of an array per query.
    query_texts = np.array([[" ".join(text.split()[:8])] for text in texts[:queries]])

    def search_fused(rows: np.ndarray) -> Any:
        return fused.search(rows.ravel().tolist(), k)

    def search_dense(rows: np.ndarray) -> Any:
        return dense.search(rows.ravel().tolist(), k)

    label = f"{documents:,} documents, fused with feedback, against its dense part"
    return _latency_rows(label, search_fused, search_dense, query_texts, rounds, MAX_FUSION_LATENCY)


def clustered_vectors(passages: int, dimension: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors around one centre per 100 passages, and queries near some of them.

    Args:
        passages: Number of vectors.
        dimension: Numbers per vector, H.
        queries: Number of queries.

    Returns:
        Vectors (passages, H) and queries (queries, H), both float32.
    """
    random = np.random.default_rng(0)
    noise = np.float32(NOISE)
    centres = random.standard_normal((max(1, passages // 100), dimension), np.float32)

    vectors = centres[random.integers(len(centres), size=passages)]
    vectors += noise * random.standard_normal((passages, dimension), np.float32)
    query_vectors = vectors[random.integers(passages, size=queries)]
    query_vectors += noise * random.standard_normal((queries, dimension), np.float32)
    return _unit(vectors), _unit(query_vectors)


def recall(returned: np.ndarray, nearest: np.ndarray) -> float:
    """Return the share of the `nearest` rows (q, k) that a search `returned`, mean over queries."""
    shares = []
    for returned_rows, nearest_rows in zip(returned.tolist(), nearest.tolist(), strict=True):
        common = set(returned_rows) & set(nearest_rows)
        shares.append(len(common) / len(nearest_rows))
    return float(np.mean(shares))


def _exact_search(vectors: np.ndarray, k: int) -> Search:
    """Return the search of our exact index of vectors (N, H)."""
    settings = IndexSettings(flat_below=ALWAYS_EXACT)
    return _search_of(DenseIndex.build(vectors, _document_ids(vectors), FINGERPRINT, settings), k)


def _automatic_search(vectors: np.ndarray, k: int) -> Search:
    """Build the index of a large collection, whatever the size of this one."""
    settings = IndexSettings(flat_below=1)
    return _search_of(DenseIndex.build(vectors, _document_ids(vectors), FINGERPRINT, settings), k)


def _document_ids(vectors: np.ndarray) -> list[str]:
    """Return an id per row. It is the row's number as text, which `_search_of` parses."""
    return [f"{i:09d}" for i in range(len(vectors))]


def _search_of(index: DenseIndex, k: int) -> Search:
    """Return the search of an index, in the form that the searches of FAISS have.

    The ids of the index must come from `_document_ids`.
    """

    def search(queries: np.ndarray) -> np.ndarray:
        """Return the rows (q, k) of the best documents, whose ids are their rows."""
        rows = []
        for ranking in index.search(queries, k, FINGERPRINT):
            rows.append([int(document_id) for document_id, _ in ranking])
        return np.array(rows)

    return search


def _faiss_flat_search(vectors: np.ndarray, k: int) -> Search:
    """Return faiss's brute-force search of vectors (N, H)."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return partial(_search_faiss, index, k)


def _search_faiss(index: Any, k: int, queries: np.ndarray) -> np.ndarray:
    """Return the rows (q, k) that FAISS finds."""
    _, rows = index.search(queries, k)
    return rows


def _build_hnsw(vectors: np.ndarray) -> Any:
    """Build faiss's HNSW graph of vectors (N, H), with 32 neighbours per node."""
    import faiss

    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors)
    return index


def _inverted_files(vectors: np.ndarray) -> tuple[Any, Any]:
    """Return two inverted files: one with the hierarchy's lists, and one that faiss trains.

    Both have the same number of lists, and were clustered with the same number of iterations.
    """
    import faiss

    settings = HierarchySettings(max_iterations=ITERATIONS, device="cpu")
    hierarchy = build_hierarchy(vectors, settings, seed=0)
    hierarchy_file = build_inverted_file(hierarchy, vectors)

    description = f"IVF{hierarchy_file.nlist},Flat"
    faiss_file = faiss.index_factory(vectors.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    faiss_file.train(vectors)
    faiss_file.add(vectors)
    return hierarchy_file, faiss_file


def build_inverted_file(hierarchy: Hierarchy, vectors: np.ndarray) -> Any:
    """Build an `IndexIVFFlat` over `vectors` (N, H) whose lists are the nodes of the last level.

    faiss trains nothing, because the centroids come from the hierarchy.
    """
    import faiss

    centroids = hierarchy.centroids[-1]
    quantiser = faiss.IndexFlatIP(hierarchy.dimension)
    quantiser.add(centroids)
    index = faiss.IndexIVFFlat(
        quantiser, hierarchy.dimension, len(centroids), faiss.METRIC_INNER_PRODUCT
    )
    index.is_trained = True
    index.add(vectors)
    return index


def _tune(parameter: str, index: Any, queries: np.ndarray, nearest: np.ndarray, k: int) -> Search:
    """Return the search with the smallest effort that reaches `RECALL`.

    The effort is raised in steps of a fifth.

    Args:
        parameter: The index's parameter for effort: "efSearch" or "nprobe".
        index: An index of faiss.
        queries: Query vectors (q, H).
        nearest: Rows (q, k) of an exact search.
        k: Hits per query.
    """
    import faiss

    parameter_space = faiss.ParameterSpace()
    search = partial(_search_faiss, index, k)
    # Beyond this effort, a search visits everything.
    max_effort = index.nlist if parameter == "nprobe" else index.ntotal
    effort = 1.0
    while True:
        value = min(max_effort, round(effort))
        parameter_space.set_index_parameter(index, parameter, value)
        if effort >= max_effort or recall(search(queries), nearest) >= RECALL:
            return search
        # A fifth of a small effort is less than one, which the parameter rounds away.
        effort = max(effort + 1, effort * 1.2)


def _latency_rows(
    label: str, ours: Search, peer: Search, queries: np.ndarray, rounds: int, most: float
) -> list[dict[str, Any]]:
    """Compare the milliseconds of single queries.

    The value of a query is the median of its runs. The rows have the median and the 99th percentile
    of these values.

    Args:
        label: Start of the rows' names.
        ours: Search of Freshet.
        peer: Search that it is compared with.
        queries: One query per row.
        rounds: Runs of every query.
        most: Largest ratio of ours to the peer.
    """
    query_medians = []
    for query in queries:
        # Each search takes an array of one query.
        batch = query[None]
        times = all_seconds([partial(ours, batch), partial(peer, batch)], rounds)
        query_medians.append(1000 * np.median(times, axis=0))

    results = []
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        our_time, peer_time = np.quantile(query_medians, quantile, axis=0).tolist()
        results.append(row_below(f"{label}: {name} (ms)", our_time, peer_time, most))
    return results


def _batch_row(
    label: str, ours: Search, peer: Search, queries: np.ndarray, rounds: int, goal: float
) -> dict[str, Any]:
    """Compare the queries per second of searches for all queries at once.

    Args:
        label: Start of the row's name.
        ours: Search of Freshet.
        peer: Search that it is compared with.
        queries: Query vectors (q, H).
        rounds: Runs of each search.
        goal: Smallest ratio of our speed to the peer's.
    """
    times = all_seconds([partial(ours, queries), partial(peer, queries)], rounds)
    our_seconds, peer_seconds = np.median(times, axis=0).tolist()
    return row(
        f"{label}: queries/s in a batch of {len(queries)}",
        len(queries) / our_seconds,
        len(queries) / peer_seconds,
        goal,
    )


def _reading_row(
    size: str, search: Search, queries: np.ndarray, size_in_bytes: int
) -> dict[str, Any]:
    """Compare the latency of an exact search with reading all vectors once.

    Args:
        size: Name of the collection.
        search: The exact search.
        queries: Query vectors (q, H).
        size_in_bytes: Size of the vectors.
    """
    tasks = [partial(search, query[None]) for query in queries[:READING_QUERIES]]
    search_milliseconds = 1000 * float(np.median(all_seconds(tasks, rounds=1)))
    reading_milliseconds = 1000 * size_in_bytes / read_rate()
    return row_without_goal(
        f"{size}, exact: ms, against reading them once", search_milliseconds, reading_milliseconds
    )


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
