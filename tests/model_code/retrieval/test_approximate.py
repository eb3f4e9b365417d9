"""Guards the laws of approximate indexes at their default depth of search: they find what exact
search finds, up to a measured share; nothing depends on the batch, hardly anything on the order of
insertion, and ties break by id.
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retrieval.protocol import Ranking

pytest.importorskip("faiss")

PASSAGES, TWINS = 8000, 400
APPROXIMATE, EXACT = IndexSettings(flat_below=1), IndexSettings()
IDS = [f"d{(7919 * row) % PASSAGES:04d}" for row in range(PASSAGES)]  # not in row order


def make_vectors() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (8000, 32) around 80 topics, 400 of them copies of others, and 100 queries near
    some of them.
    """
    chance = np.random.default_rng(0)
    topics, own = chance.standard_normal((80, 32)), chance.integers(80, size=PASSAGES)
    vectors = topics[own] + 0.5 * chance.standard_normal((PASSAGES, 32))
    vectors[PASSAGES // 2 : PASSAGES // 2 + TWINS] = vectors[:TWINS]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[chance.integers(PASSAGES, size=100)] + 0.1 * chance.standard_normal((100, 32))
    return vectors.astype(np.float32), queries.astype(np.float32)


def build(vectors: np.ndarray, rows: np.ndarray, settings: IndexSettings) -> DenseIndex:
    return DenseIndex.build(vectors[rows], [IDS[row] for row in rows], "f", settings)


def overlap(found: list[Ranking], expected: list[Ranking]) -> float:
    """Share of the expected documents among those found, mean over queries."""
    return float(
        np.mean(
            [len(dict(a).keys() & dict(b)) / len(b) for a, b in zip(found, expected, strict=True)]
        )
    )


def test_approximate_rankings_nearly_equal_exact_search() -> None:
    """An inverted file has other centroids where the order of insertion is another."""
    vectors, queries = make_vectors()
    rows, chance = np.arange(PASSAGES), np.random.default_rng(1)
    index, exact = build(vectors, rows, APPROXIMATE), build(vectors, rows, EXACT)
    together = index.search(queries, 10, "f")
    assert overlap(together, exact.search(queries, 10, "f")) >= 0.99
    assert [index.search(query[None], 10, "f")[0] for query in queries] == together
    assert [ranking[:3] for ranking in together] == index.search(queries, 3, "f")
    assert (
        overlap(
            build(vectors, chance.permutation(PASSAGES), APPROXIMATE).search(queries, 10, "f"),
            together,
        )
        >= 0.99
    )


def test_equal_passages_tie_by_document_id() -> None:
    vectors, _ = make_vectors()
    index = build(vectors, np.random.default_rng(2).permutation(PASSAGES), APPROXIMATE)
    for row, ranking in enumerate(index.search(vectors[:TWINS], 10, "f")):
        assert [name for name, _ in ranking[:2]] == sorted([IDS[row], IDS[PASSAGES // 2 + row]])
        assert ranking == sorted(ranking, key=lambda hit: (-hit[1], hit[0]))
        assert ranking[0][1] == ranking[1][1]
