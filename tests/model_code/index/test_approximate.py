"""Guards the laws of approximate indexes at their default depth of search: ten increments find what one build finds, up
to a measured share; nothing depends on the batch, hardly anything on the order of insertion, and ties break by id."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings
from model_code.retriever import Ranking

pytest.importorskip("faiss")

PASSAGES, TWINS, INCREMENTS = 8000, 400, 10
FACTORIES = ("IVF64,SQ8", "HNSW32")
IDS = [f"d{(7919 * row) % PASSAGES:04d}" for row in range(PASSAGES)]  # not in row order


def make_vectors(by_topic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (8000, 32) around 80 topics, 400 of them copies of others, and 100 queries near some of them.

    by_topic: topic after topic, so that every increment is of topics that the first had nothing of.
    """
    chance = np.random.default_rng(0)
    topics, own = chance.standard_normal((80, 32)), chance.integers(80, size=PASSAGES)
    vectors = topics[np.sort(own) if by_topic else own] + 0.5 * chance.standard_normal((PASSAGES, 32))
    vectors[PASSAGES // 2 : PASSAGES // 2 + TWINS] = vectors[:TWINS]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[chance.integers(PASSAGES, size=100)] + 0.1 * chance.standard_normal((100, 32))
    return vectors.astype(np.float32), queries.astype(np.float32)


def build(vectors: np.ndarray, rows: np.ndarray, factory: str) -> DenseIndex:
    return DenseIndex.build(vectors[rows], [IDS[row] for row in rows], "f", IndexSettings(factory=factory))


def grown(vectors: np.ndarray, order: np.ndarray, factory: str) -> DenseIndex:
    """Built from the first tenth of the rows in this order; the other tenths are added one after the other."""
    first, *others = np.split(order, INCREMENTS)
    index = build(vectors, first, factory)
    for rows in others:
        index.add(vectors[rows], [IDS[row] for row in rows], "f")
    return index


def overlap(found: list[Ranking], expected: list[Ranking]) -> float:
    """Share of the expected documents among those found, mean over queries."""
    return float(np.mean([len(dict(a).keys() & dict(b)) / len(b) for a, b in zip(found, expected, strict=True)]))


@pytest.mark.parametrize(
    ("factory", "by_topic", "least"),
    [
        ("IVF64,SQ8", False, 0.99),
        ("HNSW32", False, 0.99),
        ("IVF64,SQ8", True, 0.8),  # lists and ranges of components are the first tenth's; measured: .83
        ("HNSW32", True, 0.99),
    ],
)
def test_ten_increments_find_what_one_build_finds(factory: str, by_topic: bool, least: float) -> None:
    vectors, queries = make_vectors(by_topic)
    rows = np.arange(PASSAGES)
    exact, whole, parts = (
        index.search(queries, 10, "f")
        for index in (build(vectors, rows, "Flat"), build(vectors, rows, factory), grown(vectors, rows, factory))
    )
    assert overlap(whole, exact) >= 0.99
    assert min(overlap(parts, whole), overlap(parts, exact)) >= least


@pytest.mark.parametrize("factory", FACTORIES)
def test_no_ranking_depends_on_the_batch_and_hardly_one_on_the_order_of_insertion(factory: str) -> None:
    """An inverted file whose lists are the same holds the same in them; an HNSW graph has other edges."""
    vectors, queries = make_vectors(by_topic=False)
    chance, tenth = np.random.default_rng(1), PASSAGES // INCREMENTS
    index = grown(vectors, np.arange(PASSAGES), factory)
    together = index.search(queries, 10, "f")
    assert [index.search(query[None], 10, "f")[0] for query in queries] == together
    assert [ranking[:3] for ranking in together] == index.search(queries, 3, "f")
    later = np.concatenate([np.arange(tenth), tenth + chance.permutation(PASSAGES - tenth)])
    shuffled = grown(vectors, later, factory).search(queries, 10, "f")
    assert shuffled == together if factory.startswith("IVF") else overlap(shuffled, together) >= 0.99
    assert overlap(grown(vectors, chance.permutation(PASSAGES), factory).search(queries, 10, "f"), together) >= 0.99


@pytest.mark.parametrize("factory", FACTORIES)
def test_equal_passages_are_found_together_and_tie_by_id(factory: str) -> None:
    vectors, _ = make_vectors(by_topic=False)
    index = grown(vectors, np.random.default_rng(2).permutation(PASSAGES), factory)
    for row, ranking in enumerate(index.search(vectors[:TWINS], 10, "f")):
        assert [name for name, _ in ranking[:2]] == sorted([IDS[row], IDS[PASSAGES // 2 + row]])
        assert ranking == sorted(ranking, key=lambda hit: (-hit[1], hit[0]))
        assert ranking[0][1] == ranking[1][1]
