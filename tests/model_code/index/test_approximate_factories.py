"""Guards that every FAISS factory that is taken keeps all entries through additions, deletions, updates and a file, is
searched as deep as the settings say, and that others are refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.index.approximate import parts, require_factory
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings

faiss = pytest.importorskip("faiss")

TAKEN = (
    "IVF4,Flat,RFlat", "HNSW8,Flat,RFlat", "PCA16,HNSW8", "PCA16,IVF4,Flat", "HNSW8_SQ8", "SQ8", "IVF4_HNSW4,SQ8"
)  # fmt: skip
IDS = [f"d{row:03d}" for row in range(400)]


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, 24)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build(vectors: np.ndarray, factory: str) -> DenseIndex:
    return DenseIndex.build(vectors, IDS, "f", IndexSettings(factory=factory, nprobe=4, ef_search=77))


def first_hits(index: DenseIndex, vectors: np.ndarray) -> list[str]:
    return [ranking[0][0] for ranking in index.search(vectors, 1, "f")]


@pytest.mark.parametrize("factory", TAKEN)
def test_nothing_is_lost_by_changes_or_a_file(tmp_path: Path, factory: str) -> None:
    vectors = unit_vectors(400)
    index = build(vectors, factory)
    index.delete(IDS[:20])
    index.add(vectors[:20], [f"new {row:02d}" for row in range(20)], "f")
    index.update(unit_vectors(20, seed=1), IDS[20:40], "f")
    index.save(tmp_path)
    for one in (index, DenseIndex.load(tmp_path)):
        assert first_hits(one, vectors[:20]) == [f"new {row:02d}" for row in range(20)]
        assert first_hits(one, unit_vectors(20, seed=1)) == IDS[20:40]
        assert first_hits(one, vectors[40:]) == IDS[40:]


@pytest.mark.parametrize("factory", TAKEN)
def test_the_depth_of_search_reaches_the_lists_or_the_graph(tmp_path: Path, factory: str) -> None:
    index = build(unit_vectors(400), factory)
    index.save(tmp_path)
    for one in (index, DenseIndex.load(tmp_path)):
        *_, innermost = parts(one.approximate.index)
        if isinstance(innermost, faiss.IndexIVF):
            assert innermost.nprobe == 4
        elif isinstance(innermost, faiss.IndexHNSW):
            assert innermost.hnsw.efSearch == 77
        else:
            assert factory == "SQ8"


@pytest.mark.parametrize("stored", [False, True])
def test_what_stays_of_changed_documents_in_a_graph_hides_no_other(tmp_path: Path, stored: bool) -> None:
    """40 documents about the query turn to other topics: the next ones come up, as in exact search."""
    query, vectors = unit_vectors(1, seed=2), unit_vectors(400)
    near = query + 0.02 * unit_vectors(45, seed=3)
    vectors[:45] = near / np.linalg.norm(near, axis=1, keepdims=True)
    exact, graph = build(vectors, "Flat"), build(vectors, "HNSW8")
    for index in (exact, graph):
        index.update(unit_vectors(40, seed=4), IDS[:40], "f")
    graph.save(tmp_path)
    graph = DenseIndex.load(tmp_path) if stored else graph
    assert graph.search(query, 5, "f") == exact.search(query, 5, "f")


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("PQ8x4fs", "FastScan loses what is added"),
        ("IVF4,PQ8x4fs", "FastScan loses what is added"),
        ("IVF4,PQ8x4fs,RFlat", "FastScan loses what is added"),
        ("NSG8", "take HNSW"),
        ("IDMap,HNSW8", "leave out IDMap"),
        ("LSH", "does not fit 400 vectors"),
        ("IVF500,Flat", "does not fit 400 vectors"),
    ],
)
def test_what_would_lose_entries_or_does_not_fit_is_one_line_also_before_there_are_vectors(
    factory: str, why: str
) -> None:
    with pytest.raises(FreshetError, match=f"^index.factory '{factory}' .*{why}"):
        build(unit_vectors(400), factory)
    with pytest.raises(FreshetError, match=f"^index.factory '{factory}' .*{why}"):
        require_factory(IndexSettings(factory=factory), 400, 24)


@pytest.mark.parametrize("factory", [*TAKEN, "auto", "Flat"])
def test_what_fits_is_taken_before_there_are_vectors(factory: str) -> None:
    require_factory(IndexSettings(factory=factory), 400, 24)
