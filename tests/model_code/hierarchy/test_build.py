"""Guards the building of a hierarchy by either method: deterministic, every passage once per level, sound on the
smallest and most degenerate corpora, and clear about vectors that cannot be clustered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy

METHODS = ("bottom_up", "top_down")


def build(vectors: np.ndarray, method: str, branching: int | None = None) -> Hierarchy:
    """The hierarchy of seed 0."""
    return build_hierarchy(vectors, HierarchySettings(method=method, branching=branching), seed=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("branching", "nodes"), [(None, [5, 38]), (3, [2, 4, 12, 34, 100]), (299, [2]), (400, [1])])
def test_levels_and_their_sizes(topics: np.ndarray, method: str, branching: int | None, nodes: list[int]) -> None:
    tree = build(topics, method, branching)
    found = [len(parents) for parents in tree.parents]
    assert found == nodes
    for level, centroids in enumerate(tree.centroids, start=1):
        np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
        assert centroids.dtype == np.float32
        assert tree.sizes(level).sum() == 300
        assert tree.sizes(level).min() >= 1
    for level in range(1, tree.depth):
        np.testing.assert_array_equal(tree.parents[level][tree.paths()[:, level]], tree.paths()[:, level - 1])


@pytest.mark.parametrize("method", METHODS)
def test_equal_inputs_give_equal_bytes(topics: np.ndarray, method: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(topics.copy(), method).save(tmp_path / name)
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")


@pytest.mark.parametrize("method", METHODS)
def test_only_directions_count(topics: np.ndarray, method: str) -> None:
    scaled = topics * 2.0 ** np.arange(300)[:, None].astype(np.float32).clip(0, 20)
    np.testing.assert_array_equal(build(topics, method).leaves, build(scaled, method).leaves)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("passages", [1, 2, 3, 5, 9])
def test_the_smallest_corpora(method: str, passages: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((passages, 4)).astype(np.float32)
    tree = build(vectors, method)
    assert tree.depth >= 1
    assert tree.paths().shape == (passages, tree.depth)
    assert tree.place(vectors).shape == (passages, tree.depth)


@pytest.mark.parametrize("method", METHODS)
def test_equal_vectors_share_one_node_at_every_level(method: str) -> None:
    tree = build(np.ones((100, 4), np.float32), method)
    assert [len(parents) for parents in tree.parents] == [1, 1]


@pytest.mark.parametrize("method", METHODS)
def test_duplicates_share_a_leaf_node(topics: np.ndarray, method: str) -> None:
    tree = build(np.concatenate([topics[:40]] * 3), method, branching=2)
    np.testing.assert_array_equal(tree.leaves[:40], tree.leaves[40:80])
    assert len(tree.parents[-1]) == 40


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_without_direction_are_named(topics: np.ndarray, value: float) -> None:
    topics[[7, 9]] = value
    with pytest.raises(FreshetError, match=r"vector 7 \(and 1 more\) has norm"):
        build(topics, "bottom_up")


def test_no_vectors_are_refused() -> None:
    with pytest.raises(FreshetError, match="is the corpus empty"):
        build(np.empty((0, 4), np.float32), "bottom_up")
