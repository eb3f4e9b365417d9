"""Test that passages are placed block by block, and many passages by a descent of the hierarchy.

Run: python -m pytest tests/model_code/collection/segments/test_placements.py
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.collection.segments import placements
from model_code.collection.segments.placements import Placements, recenter_hierarchy
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import CHUNK_VECTORS, Hierarchy


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5000, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def tree(vectors: np.ndarray) -> Hierarchy:
    settings = HierarchySettings(branching=16, max_iterations=3, device="cpu")
    return build_hierarchy(vectors, settings, seed=0)


def test_blocks_do_not_change_placements(
    tree: Hierarchy, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Placements.find(tree, vectors)

    monkeypatch.setattr(placements, "BLOCK_PASSAGES", CHUNK_VECTORS)
    found = Placements.find(tree, vectors)

    assert found.paths.tobytes() == expected.paths.tobytes()
    assert found.cosines.tobytes() == expected.cosines.tobytes()


@pytest.mark.parametrize("block_passages", [1, 100])
def test_blocks_do_not_change_centroids(
    block_passages: int, tree: Hierarchy, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_vectors = vectors[::-1]
    expected = recenter_hierarchy(tree, other_vectors)

    monkeypatch.setattr(placements, "BLOCK_PASSAGES", block_passages)
    recentered = recenter_hierarchy(tree, other_vectors)

    for centroids, expected_centroids in zip(recentered.centroids, expected.centroids, strict=True):
        assert centroids.tobytes() == expected_centroids.tobytes()


def test_many_passages_descend_the_tree(
    tree: Hierarchy, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearest = Placements.find(tree, vectors)

    monkeypatch.setattr(placements, "MAX_EXACT_PLACEMENTS", 1000)
    found = Placements.find(tree, vectors)

    is_nearest = found.paths[:, -1] == nearest.paths[:, -1]
    assert 0.8 < is_nearest.mean() < 1
    assert (found.cosines <= nearest.cosines + 1e-5).all()
