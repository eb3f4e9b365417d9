"""Tests of the index of embeddings E(p).

Its rankings equal a dense product, with ties by id. Equal passages give equal bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.lexical.encoder import Sparse
from model_code.lexical.index import EmbeddingIndex
from model_code.retrieval.protocol import Ranking

SIZE = 30
IDS = ["d2", "d0", "d1", "d0", "d5", "d4", "d3"]


def make_sparse(rows: int, entries: int, seed: int) -> list[Sparse]:
    """Make random sparse vectors with equally many entries."""
    random = np.random.default_rng(seed)
    entry_ids = [np.sort(random.choice(SIZE, entries, replace=False)) for _ in range(rows)]
    return [(ids, random.random(entries).astype(np.float32)) for ids in entry_ids]


def make_index() -> EmbeddingIndex:
    """Index seven passages."""
    return EmbeddingIndex.build(make_sparse(7, 6, 0), IDS, SIZE)


def to_dense(embeddings: list[Sparse], dtype: str) -> np.ndarray:
    """Return sparse vectors as rows of a matrix, after rounding to a dtype."""
    matrix = np.zeros((len(embeddings), SIZE))
    for row, (ids, weights) in zip(matrix, embeddings, strict=True):
        row[ids] = weights.astype(dtype)
    return matrix


def rank_documents(scores: np.ndarray, k: int) -> Ranking:
    """Rank documents by their best passage; those that do not match are left out."""
    best: dict[str, float] = {}
    for document, score in zip(IDS, scores.tolist(), strict=True):
        if score > 0:
            best[document] = max(score, best.get(document, 0.0))

    def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
        document, score = hit
        return -score, document

    return sorted(best.items(), key=sort_key)[:k]


def test_search_is_the_dense_product_over_best_passages() -> None:
    queries = make_sparse(9, 4, 1)

    rankings = make_index().search(queries, 4)

    products = to_dense(queries, "float32") @ to_dense(make_sparse(7, 6, 0), "float16").T
    for scores, ranking in zip(products, rankings, strict=True):
        expected = rank_documents(scores, 4)
        assert [document for document, _ in ranking] == [document for document, _ in expected]
        np.testing.assert_allclose(
            [score for _, score in ranking], [score for _, score in expected], rtol=1e-6
        )


@pytest.fixture
def query() -> Sparse:
    """A query of ten entries."""
    (query,) = make_sparse(1, 10, 3)
    return query


def test_candidates_are_scored_as_by_search(query: Sparse) -> None:
    index = make_index()
    whole = dict(index.search([query], 9)[0])

    (ranking,) = index.rank([query], [["d5", "d0"]])

    assert dict(ranking) == {"d0": whole.get("d0", 0.0), "d5": whole.get("d5", 0.0)}


def test_filtered_documents_are_scored_as_by_search(query: Sparse) -> None:
    index = make_index()
    (whole,) = index.search([query], 9)

    (ranking,) = index.search([query], 9, allowed=["d1", "d4"])

    assert dict(ranking) == {name: score for name, score in whole if name in ("d1", "d4")}


def test_matches_sum_to_the_score(query: Sparse) -> None:
    index = make_index()
    (ranking,) = index.search([query], 9)

    assert ranking
    for document, score in ranking:
        weights = [weight for _, weight in index.matches(query, document)]
        assert sum(weights) == pytest.approx(score, rel=1e-6)


def test_unknown_candidates_are_refused(query: Sparse) -> None:
    with pytest.raises(FreshetError, match="no document 'd9'"):
        make_index().rank([query], [["d9"]])


def test_equal_passages_give_equal_bytes(tmp_path: Path) -> None:
    make_index().save(tmp_path / "first")
    make_index().save(tmp_path / "second")

    assert hash_path(tmp_path / "second") == hash_path(tmp_path / "first")


def test_loaded_index_equals_the_saved_one(tmp_path: Path) -> None:
    index = make_index()
    queries = make_sparse(3, 9, 2)
    index.save(tmp_path)

    loaded = EmbeddingIndex.load(tmp_path)

    assert loaded.search(queries, 3) == index.search(queries, 3)


def test_index_without_documents_has_no_hits(query: Sparse) -> None:
    assert EmbeddingIndex.build([], [], SIZE).search([query], 3) == [[]]


def test_weights_beyond_float16_are_refused() -> None:
    passage = (np.array([0]), np.array([1e6], np.float32))

    with pytest.raises(FreshetError, match="not finite in float16"):
        EmbeddingIndex.build([passage], ["a"], SIZE)


def test_entries_outside_the_vocabulary_are_refused() -> None:
    passage = (np.array([SIZE]), np.ones(1, np.float32))

    with pytest.raises(FreshetError, match="outside the vocabulary"):
        EmbeddingIndex.build([passage], ["a"], SIZE)


def test_damaged_index_is_refused(tmp_path: Path) -> None:
    make_index().save(tmp_path)
    (tmp_path / "weights.npy").write_bytes(b"")

    with pytest.raises(FreshetError, match="was changed"):
        EmbeddingIndex.load(tmp_path)
