"""Guards exact search: scores and rows of a full sort, ties by row, whatever is asked at once; and no FAISS in it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.index import exact
from model_code.index.dense_index import DenseIndex
from model_code.index.exact import nearest
from model_code.index.settings import IndexSettings


def whole_numbers(seed: int, rows: int) -> np.ndarray:
    """(rows, 6): their inner products are exact in float32, and many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, size=(rows, 6)).astype(np.float32)


@pytest.mark.parametrize("asked", [0, 1, 5, exact.FEW, 40])
@pytest.mark.parametrize("kept", [1, 700, exact.SCORES])
def test_the_nearest_are_those_of_a_full_sort(asked: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of scores is in memory at a time."""
    monkeypatch.setattr(exact, "SCORES", kept)
    queries = whole_numbers(1, asked)
    for passages in (0, 1, 30, 600):
        vectors = whole_numbers(0, passages)
        products = queries.astype(int) @ vectors.astype(int).T
        order = np.argsort(-products, axis=1, kind="stable")
        for count in (1, 10, 100, 1000):
            scores, rows = nearest(queries, vectors, count)
            assert (scores.dtype, rows.dtype) == (np.float32, np.int64)
            np.testing.assert_array_equal(rows, order[:, :count])
            np.testing.assert_array_equal(scores, np.take_along_axis(products, rows, axis=1))


@pytest.mark.parametrize(
    ("passages", "asked", "blocks"),
    [
        (1_000, 2 * exact.FEW + 5, [exact.FEW, exact.FEW, 5]),  # so many passages that FEW queries' scores are too many
        (60, 41, [16, 16, 9]),  # as many queries as their scores have room for
        (60, 16, [16]),
    ],
)
def test_a_large_search_goes_in_blocks_that_are_no_narrower_than_a_matrix_product_is_worth(
    passages: int, asked: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of fewer than FEW queries would go through all vectors once for each of them."""
    monkeypatch.setattr(exact, "SCORES", 16 * 60)
    chance = np.random.default_rng(0)
    queries, vectors = (chance.standard_normal((n, 48), np.float32) for n in (asked, passages))
    products, seen = exact._inner_products, []

    def counted(some: np.ndarray, among: np.ndarray) -> np.ndarray:
        seen.append(len(some))
        return products(some, among)

    monkeypatch.setattr(exact, "_inner_products", counted)
    scores, rows = nearest(queries, vectors, 20)
    oracle = queries.astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_array_equal(rows, np.argsort(-oracle, axis=1, kind="stable")[:, :20])
    np.testing.assert_allclose(scores, np.take_along_axis(oracle, rows, axis=1), rtol=1e-5)
    assert seen == blocks


def test_it_is_what_faiss_finds() -> None:
    faiss = pytest.importorskip("faiss")
    chance = np.random.default_rng(0)
    queries, vectors = (chance.standard_normal((n, 48), np.float32) for n in (30, 5000))
    scores, rows = nearest(queries, vectors, 20)
    theirs, found = faiss.knn(queries, vectors, 20, metric=faiss.METRIC_INNER_PRODUCT)
    np.testing.assert_array_equal(rows, found)
    np.testing.assert_allclose(scores, theirs, rtol=1e-5)


def test_a_flat_index_does_without_faiss_and_an_approximate_one_says_what_to_install(
    vectors: np.ndarray, document_ids: list[str], queries: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    expected = DenseIndex.build(vectors, document_ids, "f").search(queries, 10, "f")
    DenseIndex.build(vectors, document_ids, "f", IndexSettings("IVF4,Flat")).save(tmp_path / "approximate")
    monkeypatch.setitem(sys.modules, "faiss", None)
    flat = DenseIndex.build(vectors, document_ids, "f")
    flat.save(tmp_path / "flat")
    flat.delete(["doc-17"])
    flat.add(vectors[np.array(document_ids) == "doc-17"], ["doc-17"] * document_ids.count("doc-17"), "f")
    assert flat.search(queries, 10, "f") == DenseIndex.load(tmp_path / "flat").search(queries, 10, "f") == expected
    assert flat.search_among(queries[:2], 3, document_ids, "f") == [ranking[:3] for ranking in expected[:2]]
    for factory in ("IVF4,Flat", "HNSW8"):
        with pytest.raises(FreshetError, match=r"needs faiss, .*pip install .*or set index\.factory: Flat"):
            DenseIndex.build(vectors, document_ids, "f", IndexSettings(factory))
    with pytest.raises(FreshetError, match="needs faiss"):
        DenseIndex.load(tmp_path / "approximate")
