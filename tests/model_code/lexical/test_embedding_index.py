"""Guards the index of E(p): equal to a dense product, ties by id, pure bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.lexical.encoder import Sparse
from model_code.lexical.index import EmbeddingIndex

SIZE = 30
IDS = ["d2", "d0", "d1", "d0", "d5", "d4", "d3"]


def sparse(rows: int, count: int, seed: int) -> list[Sparse]:
    random = np.random.default_rng(seed)
    ids = [np.sort(random.choice(SIZE, count, replace=False)) for _ in range(rows)]
    return [(row, random.random(count).astype(np.float32)) for row in ids]


def matrix(embeddings: list[Sparse], dtype: str) -> np.ndarray:
    rows = np.zeros((len(embeddings), SIZE))
    for row, (ids, weights) in zip(rows, embeddings, strict=True):
        row[ids] = weights.astype(dtype)
    return rows


def test_search_is_the_dense_product_over_best_passages() -> None:
    passages, queries = sparse(7, 6, 0), sparse(9, 4, 1)
    index = EmbeddingIndex.build(passages, IDS, SIZE)
    scores = matrix(queries, "float32") @ matrix(passages, "float16").T
    for row, ranking in zip(scores, index.search(queries, 4), strict=True):
        best = {
            document: max(row[i] for i in range(7) if IDS[i] == document) for document in set(IDS)
        }
        expected = sorted(
            ((d, s) for d, s in best.items() if s > 0), key=lambda item: (-item[1], item[0])
        )[:4]
        assert [document for document, _ in ranking] == [document for document, _ in expected]
        np.testing.assert_allclose([s for _, s in ranking], [s for _, s in expected], rtol=1e-6)


def test_rank_and_filter_score_as_search() -> None:
    index = EmbeddingIndex.build(sparse(7, 6, 0), IDS, SIZE)
    (query,) = sparse(1, 10, 3)
    whole = dict(index.search([query], 9)[0])
    assert dict(index.rank([query], [["d5", "d0"]])[0]) == {
        name: whole.get(name, 0.0) for name in ("d0", "d5")
    }
    allowed = dict(index.search([query], 9, allowed=["d1", "d4"])[0])
    assert allowed == {name: score for name, score in whole.items() if name in ("d1", "d4")}
    for document, score in whole.items():
        assert sum(part for _, part in index.matches(query, document)) == pytest.approx(
            score, rel=1e-6
        )
    with pytest.raises(FreshetError, match="no document 'd9'"):
        index.rank([query], [["d9"]])


def test_equal_passages_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        index = EmbeddingIndex.build(sparse(7, 6, 0), IDS, SIZE)
        index.save(tmp_path / name)
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")
    loaded = EmbeddingIndex.load(tmp_path / "one")
    assert loaded.search(sparse(3, 9, 2), 3) == index.search(sparse(3, 9, 2), 3)
    nothing = EmbeddingIndex.build([], [], SIZE)
    assert nothing.search(sparse(1, 9, 2), 3) == [[]]


def test_damaged_and_unsound_embeddings_are_refused(tmp_path: Path) -> None:
    index = EmbeddingIndex.build(sparse(7, 6, 0), IDS, SIZE)
    with pytest.raises(FreshetError, match="not finite in float16"):
        EmbeddingIndex.build([(np.array([0]), np.array([1e6], np.float32))], ["a"], SIZE)
    with pytest.raises(FreshetError, match="outside the vocabulary"):
        EmbeddingIndex.build([(np.array([SIZE]), np.ones(1, np.float32))], ["a"], SIZE)
    index.save(tmp_path)
    (tmp_path / "weights.npy").write_bytes(b"")
    with pytest.raises(FreshetError, match="was changed"):
        EmbeddingIndex.load(tmp_path)
