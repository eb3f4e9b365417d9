"""Guards that every FAISS factory that is taken keeps all entries in a build and a file, is searched as deep as the
settings say, and that others are refused in one line."""

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
    "IVF4,Flat,RFlat", "HNSW8,Flat,RFlat", "PCA16,HNSW8", "PCA16,IVF4,Flat", "HNSW8_SQ8", "SQ8", "IVF4_HNSW4,SQ8",
    "IVF4,PQ8x4fs,RFlat", "NSG8"
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
def test_nothing_is_lost_by_a_build_or_a_file(tmp_path: Path, factory: str) -> None:
    vectors = unit_vectors(400)
    index = build(vectors, factory)
    index.save(tmp_path)
    for one in (index, DenseIndex.load(tmp_path)):
        assert first_hits(one, vectors) == IDS


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
        elif isinstance(innermost, faiss.IndexNSG):
            assert innermost.nsg.search_L == 77
        else:
            assert factory == "SQ8"


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("IDMap,HNSW8", "leave out IDMap"),
        ("LSH", "does not fit 400 vectors"),
        ("IVF500,Flat", "does not fit 400 vectors"),
    ],
)
def test_what_does_not_fit_is_one_line_also_before_there_are_vectors(factory: str, why: str) -> None:
    with pytest.raises(FreshetError, match=f"^index.factory '{factory}' .*{why}"):
        build(unit_vectors(400), factory)
    with pytest.raises(FreshetError, match=f"^index.factory '{factory}' .*{why}"):
        require_factory(IndexSettings(factory=factory), 400, 24)


@pytest.mark.parametrize("factory", [*TAKEN, "auto", "Flat"])
def test_what_fits_is_taken_before_there_are_vectors(factory: str) -> None:
    require_factory(IndexSettings(factory=factory), 400, 24)
