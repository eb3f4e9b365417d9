"""Compare vector search with FAISS, and the untrained fusion with its dense component.

Three comparisons use FAISS:

- An exact index of ours against brute force, the floor of exact search.
- The index that `auto` chooses for large collections against HNSW.
- The inverted file that a hierarchy of the same passages provides against faiss's inverted file.

Our rankings are stable. The fusion includes its second pass.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import mixed_texts
from benchmarks.measurement import all_seconds, read_rate, row, row_below, row_without_goal
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_index import Bm25Segment
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.index_settings import ALWAYS_EXACT, Bm25Settings, IndexSettings

FINGERPRINT, BASE = "benchmark", EncoderSettings().base
LARGE = 1_000_000
# Recall that approximate searches are tuned to or must reach.
RECALL = 0.99
# Goals of the ratios to the peer.
AS_FAST, LATENCY, FASTER, FUSED = 0.8, 1.25, 2.0, 1.3
# Iterations of k-means for both inverted files, which is faiss's default.
ITERATIONS = 10
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
    passages = LARGE if large else passages
    vectors, asked = clustered_vectors(passages, dimension, queries)
    size = f"{passages:,} x {dimension}"
    flat, floor = _exact(vectors, k), _faiss_flat(vectors, k)
    true = floor(asked)
    ours, hnsw = _automatic(vectors, k), _tuned("ef", _hnsw(vectors), asked, true, k)
    own, theirs = (_tuned("nprobe", index, asked, true, k) for index in _inverted_files(vectors))
    return [
        *_latency(f"{size}, exact, against faiss flat", flat, floor, asked, rounds, LATENCY),
        _batch(f"{size}, exact, against faiss flat", flat, floor, asked, rounds, AS_FAST),
        _against_reading(size, flat, asked, vectors.nbytes),
        row(f"{size}, index by default: recall@{k}", recall(ours(asked), true), 1.0, goal=RECALL),
        *_latency(
            f"{size}, index by default, against faiss flat", ours, floor, asked, rounds, 1 / FASTER
        ),
        *_latency(
            f"{size}, index by default, against HNSW at its recall {RECALL}",
            ours,
            hnsw,
            asked,
            rounds,
            1.0,
        ),
        *_latency(
            f"{size}, the hierarchy's lists, against faiss's at recall {RECALL}",
            own,
            theirs,
            asked,
            rounds,
            1.0,
        ),
        *_fused(documents, queries, k, rounds, base),
    ]


def _fused(
    documents: int, queries: int, k: int, rounds: int, base: str | Path
) -> list[dict[str, Any]]:
    """Compare the fusion with its dense component, including the encoding of the queries."""
    encoder, texts = Encoder.load(base, 64, for_search=True), mixed_texts(documents)
    vectors, _ = clustered_vectors(documents, encoder.dimension, 1)
    dense = DenseRetriever(encoder, DenseIndex.build(vectors, _ids(vectors), encoder.fingerprint()))
    bm25 = Bm25Retriever(Bm25Segment.build(texts, _ids(vectors), "english"), Bm25Settings())
    fusion = Fusion(
        {"dense": 1.0, "bm25": 5.0}, {"dense": ScoreNormalizer.fit(vectors)}, feedback=0.3
    )
    fused = FusedSearch({"dense": dense, "bm25": bm25}, fusion)
    asked = np.array([[" ".join(text.split()[:8])] for text in texts[:queries]])
    searches = [
        lambda words, found=one: found.search(words.ravel().tolist(), k) for one in (fused, dense)
    ]
    return _latency(
        f"{documents:,} documents, fused with feedback, against its dense part",
        *searches,
        asked,
        rounds,
        FUSED,
    )


def clustered_vectors(passages: int, dimension: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors around one centre per 100 passages, and queries near some of them."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((max(1, passages // 100), dimension), np.float32)
    noise = np.float32(0.7)
    vectors = centres[chance.integers(len(centres), size=passages)]
    vectors += noise * chance.standard_normal((passages, dimension), np.float32)
    asked = vectors[chance.integers(passages, size=queries)]
    asked += noise * chance.standard_normal((queries, dimension), np.float32)
    return _unit(vectors), _unit(asked)


def recall(found: np.ndarray, true: np.ndarray) -> float:
    """Return the share of the true rows (q, k) among those found, mean over the queries."""
    return float(
        np.mean(
            [
                len(set(a) & set(b)) / len(b)
                for a, b in zip(found.tolist(), true.tolist(), strict=True)
            ]
        )
    )


def _exact(vectors: np.ndarray, k: int) -> Search:
    return _of(
        DenseIndex.build(
            vectors, _ids(vectors), FINGERPRINT, IndexSettings(flat_below=ALWAYS_EXACT)
        ),
        k,
    )


def _automatic(vectors: np.ndarray, k: int) -> Search:
    """Build the index of a large collection, whatever the size of this one."""
    return _of(
        DenseIndex.build(vectors, _ids(vectors), FINGERPRINT, IndexSettings(flat_below=1)), k
    )


def _ids(vectors: np.ndarray) -> list[str]:
    return [f"{i:09d}" for i in range(len(vectors))]


def _of(index: DenseIndex, k: int) -> Search:
    def search(asked: np.ndarray) -> np.ndarray:
        """Return the rows (q, k) of the best documents, whose ids are their rows."""
        rankings = index.search(asked, k, FINGERPRINT)
        return np.array([[int(document) for document, _ in ranking] for ranking in rankings])

    return search


def _faiss_flat(vectors: np.ndarray, k: int) -> Search:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda asked: index.search(asked, k)[1]


def _hnsw(vectors: np.ndarray) -> Any:
    import faiss

    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors)
    return index


def _inverted_files(vectors: np.ndarray) -> tuple[Any, Any]:
    """Return the hierarchy's inverted file and one that faiss trains with as many lists.

    Both have the same number of iterations.
    """
    import faiss

    tree = build_hierarchy(
        vectors, HierarchySettings(max_iterations=ITERATIONS, device="cpu"), seed=0
    )
    own = build_inverted_file(tree, vectors)
    theirs = faiss.index_factory(
        vectors.shape[1], f"IVF{own.nlist},Flat", faiss.METRIC_INNER_PRODUCT
    )
    theirs.train(vectors)
    theirs.add(vectors)
    return own, theirs


def build_inverted_file(tree: Hierarchy, vectors: np.ndarray) -> Any:
    """Build an `IndexIVFFlat` over `vectors` (N, H) whose lists are the nodes of the last level.

    faiss trains nothing, because the centroids come from the tree.
    """
    import faiss

    centroids = tree.centroids[-1]
    quantiser = faiss.IndexFlatIP(tree.dimension)
    quantiser.add(centroids)
    index = faiss.IndexIVFFlat(
        quantiser, tree.dimension, len(centroids), faiss.METRIC_INNER_PRODUCT
    )
    index.is_trained = True
    index.add(vectors)
    return index


def _tuned(knob: str, index: Any, asked: np.ndarray, true: np.ndarray, k: int) -> Search:
    """Return the search with the least effort that reaches `RECALL`, in steps of a fifth."""
    import faiss

    effort, space = 1.0, faiss.ParameterSpace()

    def search(queries: np.ndarray) -> np.ndarray:
        """Return the rows (q, k) that FAISS finds."""
        return index.search(queries, k)[1]

    most = index.ntotal if knob == "ef" else index.nlist
    while True:
        space.set_index_parameter(
            index, "efSearch" if knob == "ef" else knob, min(most, round(effort))
        )
        if effort >= most or recall(search(asked), true) >= RECALL:
            return search
        effort = max(effort + 1, effort * 1.2)


def _latency(
    what: str, ours: Search, peer: Search, asked: np.ndarray, rounds: int, most: float
) -> list[dict[str, Any]]:
    """Return milliseconds of single queries: median and 99th percentile of the queries' medians."""
    pairs = [[lambda q=q, s=search: s(q[None]) for search in (ours, peer)] for q in asked]
    spent = np.array([np.median(all_seconds(pair, rounds), axis=0) for pair in pairs]) * 1000
    quantiles = (("p50", 0.5), ("p99", 0.99))
    return [
        row_below(f"{what}: {name} (ms)", *np.quantile(spent, quantile, axis=0).tolist(), most)
        for name, quantile in quantiles
    ]


def _batch(
    what: str, ours: Search, peer: Search, asked: np.ndarray, rounds: int, goal: float
) -> dict[str, Any]:
    spent = np.median(all_seconds([lambda: ours(asked), lambda: peer(asked)], rounds), axis=0)
    return row(
        f"{what}: queries/s in a batch of {len(asked)}", *(len(asked) / spent).tolist(), goal
    )


def _against_reading(
    size: str, ours: Search, asked: np.ndarray, size_in_bytes: int
) -> dict[str, Any]:
    spent = float(np.median(all_seconds([lambda q=q: ours(q[None]) for q in asked[:20]], 1))) * 1000
    return row_without_goal(
        f"{size}, exact: ms, against reading them once", spent, size_in_bytes / read_rate() * 1000
    )


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
