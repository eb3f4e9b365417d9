"""Guards indexes with several vectors per passage: documents by their best row, exact for any k, passages counted in
passages, and save and load as with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.files import read_json
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings

EACH = 3
PASSAGES = ["b", "a", "b", "c", "a", "b"]  # the document of each of six passages
ROWS = [document for document in PASSAGES for _ in range(EACH)]


@pytest.fixture
def vectors() -> np.ndarray:
    """(18, 4): three unit vectors for each of six passages."""
    raw = np.random.default_rng(0).standard_normal((len(ROWS), 4))
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def build(vectors: np.ndarray, rows: list[str] = ROWS, flat_below: int = 1000) -> DenseIndex:
    """All entries are searched, so that an approximate index is exact."""
    settings = IndexSettings(flat_below=flat_below, nprobe=32)
    return DenseIndex.build(vectors, rows, "f", settings, vectors_per_passage=EACH)


@pytest.mark.parametrize("flat_below", [1000, 1])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_the_maximum_over_all_vectors_ranks_documents(vectors: np.ndarray, flat_below: int, k: int) -> None:
    index = build(vectors, flat_below=flat_below)
    queries = np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32)
    for query, ranking in zip(queries, index.search(queries, k, "f"), strict=True):
        best: dict[str, float] = {}
        for vector, document in zip(vectors, ROWS, strict=True):
            score = float(np.float32(sum(float(a) * float(b) for a, b in zip(query, vector, strict=True))))
            best[document] = max(best.get(document, -np.inf), score)
        expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:k]
        assert [document for document, _ in ranking] == [document for document, _ in expected]
        np.testing.assert_allclose([s for _, s in ranking], [s for _, s in expected], rtol=0, atol=2e-7)


def test_the_best_passage_is_counted_in_passages(vectors: np.ndarray) -> None:
    index = build(vectors)
    for row, document in enumerate(ROWS):
        passage = PASSAGES[: row // EACH].count(document)
        assert index.best_passage(vectors[row], document) == passage
    assert index.passages == len(PASSAGES)


def test_saved_and_loaded_it_still_knows(vectors: np.ndarray, tmp_path: Path) -> None:
    build(vectors).save(tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    assert (manifest["vectors_per_passage"], manifest["passages"], manifest["documents"]) == (EACH, 6, 3)
    loaded = DenseIndex.load(tmp_path)
    assert loaded.best_passage(vectors[-1], "b") == 2
    assert loaded.vectors_per_passage == EACH
