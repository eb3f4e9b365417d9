"""Searching vectors: our index, with its stable rankings, against raw FAISS brute force, the floor of exact search."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_code.benchmarks.measuring import best_seconds, row
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings

FINGERPRINT = "benchmark"


def rows(
    passages: int = 20_000, dimension: int = 384, queries: int = 100, k: int = 10, rounds: int = 3
) -> list[dict[str, Any]]:
    """Queries per second, one at a time and in a batch, exact and approximate; and what the approximate one finds."""
    import faiss

    vectors, asked = clustered_vectors(passages, dimension, queries)
    ids = [f"{i:09d}" for i in range(passages)]
    flat = DenseIndex.build(vectors, ids, FINGERPRINT, IndexSettings(factory="Flat"))
    approximate = DenseIndex.build(vectors, ids, FINGERPRINT, IndexSettings(flat_below=1))
    floor = faiss.IndexFlatIP(dimension)
    floor.add(vectors)

    def one_by_one(index: DenseIndex) -> None:
        for query in asked:
            index.search(query[None], k, FINGERPRINT)

    tasks = [
        lambda: one_by_one(flat),
        lambda: flat.search(asked, k, FINGERPRINT),
        lambda: one_by_one(approximate),
        lambda: [floor.search(query[None], k) for query in asked],
        lambda: floor.search(asked, k),
    ]
    ours, ours_batch, ours_fast, peer, peer_batch = (queries / seconds for seconds in best_seconds(tasks, rounds))
    size = f"{passages:,} x {dimension}"
    return [
        row(f"queries/s one at a time, exact, {size}, against faiss flat", ours, peer, goal=0.8),
        row(f"queries/s in a batch, exact, {size}, against faiss flat", ours_batch, peer_batch, goal=0.8),
        row(f"queries/s one at a time, {approximate.factory}, {size}, against faiss flat", ours_fast, peer, goal=2.0),
        row(f"recall@{k} of {approximate.factory}", recall(approximate, flat, asked, k), 1.0, goal=0.99),
    ]


def clustered_vectors(passages: int, dimension: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around one centre per 100 passages, as encoders give, and queries near some of them."""
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(max(1, passages // 100), dimension))
    vectors = centres[chance.integers(len(centres), size=passages)] + 0.7 * chance.normal(size=(passages, dimension))
    asked = vectors[chance.integers(passages, size=queries)] + 0.7 * chance.normal(size=(queries, dimension))
    return _unit(vectors), _unit(asked)


def recall(approximate: DenseIndex, exact: DenseIndex, queries: np.ndarray, k: int) -> float:
    """Share of the true k best that the approximate index returns, mean over the queries."""
    found, true = (index.search(queries, k, FINGERPRINT) for index in (approximate, exact))
    return float(np.mean([len(dict(a).keys() & dict(b).keys()) / k for a, b in zip(found, true, strict=True)]))


def _unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
