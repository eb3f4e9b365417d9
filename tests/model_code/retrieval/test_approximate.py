"""Test approximate indexes at their default depth of search.

They find what exact search finds, up to a measured share. Rankings do not depend on the batch,
hardly depend on the order of insertion, and ties break by id.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retrieval.protocol import Ranking

pytest.importorskip("faiss")

PASSAGES = 8000
# Number of passages that have an equal passage.
TWINS = 400
APPROXIMATE = IndexSettings(flat_below=1)
EXACT = IndexSettings()
# The order of ids is not the order of rows.
IDS = [f"d{(7919 * row) % PASSAGES:04d}" for row in range(PASSAGES)]


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def vectors(rng: np.random.Generator) -> np.ndarray:
    """Return unit vectors (8000, 32) around 80 topics; 400 of them are copies of others."""
    topics = rng.standard_normal((80, 32))
    topic_numbers = rng.integers(80, size=PASSAGES)
    vectors = topics[topic_numbers] + 0.5 * rng.standard_normal((PASSAGES, 32))
    vectors[PASSAGES // 2 : PASSAGES // 2 + TWINS] = vectors[:TWINS]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


@pytest.fixture(scope="module")
def queries(rng: np.random.Generator, vectors: np.ndarray) -> np.ndarray:
    """Return 100 queries near passages."""
    rows = rng.integers(PASSAGES, size=100)
    noise = 0.1 * rng.standard_normal((100, 32))
    return (vectors[rows] + noise).astype(np.float32)


def build(vectors: np.ndarray, rows: np.ndarray, settings: IndexSettings) -> DenseIndex:
    return DenseIndex.build(vectors[rows], [IDS[row] for row in rows], "f", settings)


def overlap(rankings: list[Ranking], expected_rankings: list[Ranking]) -> float:
    """Return the share of expected documents in the rankings, averaged over queries."""
    shares = []
    for ranking, expected in zip(rankings, expected_rankings, strict=True):
        common = dict(ranking).keys() & dict(expected).keys()
        shares.append(len(common) / len(expected))
    return float(np.mean(shares))


@pytest.fixture(scope="module")
def index(vectors: np.ndarray) -> DenseIndex:
    return build(vectors, np.arange(PASSAGES), APPROXIMATE)


@pytest.fixture(scope="module")
def rankings(index: DenseIndex, queries: np.ndarray) -> list[Ranking]:
    return index.search(queries, 10, "f")


def test_approximate_rankings_nearly_equal_exact_search(
    vectors: np.ndarray, queries: np.ndarray, rankings: list[Ranking]
) -> None:
    exact_index = build(vectors, np.arange(PASSAGES), EXACT)

    assert overlap(rankings, exact_index.search(queries, 10, "f")) >= 0.99


def test_rankings_do_not_depend_on_the_batch(
    index: DenseIndex, queries: np.ndarray, rankings: list[Ranking]
) -> None:
    single_rankings = [index.search(query[None], 10, "f")[0] for query in queries]

    assert single_rankings == rankings


def test_short_rankings_begin_long_ones(
    index: DenseIndex, queries: np.ndarray, rankings: list[Ranking]
) -> None:
    assert index.search(queries, 3, "f") == [ranking[:3] for ranking in rankings]


def test_rankings_hardly_depend_on_the_order_of_insertion(
    vectors: np.ndarray, queries: np.ndarray, rankings: list[Ranking]
) -> None:
    """An inverted file has other centroids if rows are inserted in another order."""
    order = np.random.default_rng(1).permutation(PASSAGES)
    shuffled_index = build(vectors, order, APPROXIMATE)

    assert overlap(shuffled_index.search(queries, 10, "f"), rankings) >= 0.99


def test_equal_passages_tie_by_document_id(vectors: np.ndarray) -> None:
    order = np.random.default_rng(2).permutation(PASSAGES)
    index = build(vectors, order, APPROXIMATE)

    for row, ranking in enumerate(index.search(vectors[:TWINS], 10, "f")):
        twin_ids = sorted([IDS[row], IDS[PASSAGES // 2 + row]])
        assert [document_id for document_id, _ in ranking[:2]] == twin_ids
        assert ranking == sorted(ranking, key=rank_key)
        assert ranking[0][1] == ranking[1][1]


def rank_key(hit: tuple[str, float]) -> tuple[float, str]:
    document_id, score = hit
    return -score, document_id


@pytest.fixture
def saved(index: DenseIndex, tmp_path: Path) -> Path:
    index.save(tmp_path)
    return tmp_path


def test_mapped_lists_find_the_same(
    saved: Path, queries: np.ndarray, rankings: list[Ranking]
) -> None:
    assert DenseIndex.load(saved).search(queries, 10, "f") == rankings


def test_loaded_lists_are_mapped(saved: Path) -> None:
    import faiss

    # The lists do not outlive their index.
    loaded = DenseIndex.load(saved)
    lists = faiss.downcast_InvertedLists(loaded.approximate.invlists)

    assert isinstance(lists, faiss.OnDiskInvertedLists)
