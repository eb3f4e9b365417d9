"""Test building a hierarchy: determinism, small corpora, and vectors that cannot be clustered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.errors import FreshetError
from model_code.hierarchy.build import build_hierarchy, cluster_bottom_up, number_nodes
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy


def build(vectors: np.ndarray, branching: int | None = None) -> Hierarchy:
    """Build the hierarchy of seed 0."""
    return build_hierarchy(vectors, HierarchySettings(branching=branching), seed=0)


def level_node_counts(tree: Hierarchy) -> list[int]:
    return [len(parents) for parents in tree.parents]


@pytest.mark.parametrize(
    ("branching", "nodes"), [(None, [5, 38]), (3, [2, 4, 12, 34, 100]), (299, [2]), (400, [1])]
)
def test_branching_decides_the_nodes_per_level(
    topics: np.ndarray, branching: int | None, nodes: list[int]
) -> None:
    tree = build(topics, branching)

    assert level_node_counts(tree) == nodes


@pytest.mark.parametrize("branching", [None, 3, 299, 400])
def test_centroids_are_unit_vectors(topics: np.ndarray, branching: int | None) -> None:
    tree = build(topics, branching)

    for centroids in tree.centroids:
        np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
        assert centroids.dtype == np.float32


@pytest.mark.parametrize("branching", [None, 3, 299, 400])
def test_each_level_holds_every_passage_once(topics: np.ndarray, branching: int | None) -> None:
    tree = build(topics, branching)

    for level in range(1, tree.depth + 1):
        assert tree.sizes(level).sum() == 300
        assert tree.sizes(level).min() >= 1


@pytest.mark.parametrize("branching", [None, 3, 299, 400])
def test_paths_follow_the_parents(topics: np.ndarray, branching: int | None) -> None:
    tree = build(topics, branching)

    paths = tree.paths()
    for level in range(1, tree.depth):
        parents = tree.parents[level][paths[:, level]]
        np.testing.assert_array_equal(parents, paths[:, level - 1])


def test_only_directions_count(topics: np.ndarray) -> None:
    exponents = np.arange(300)[:, None].astype(np.float32).clip(0, 20)
    scaled_topics = topics * 2.0**exponents

    np.testing.assert_array_equal(build(topics).leaves, build(scaled_topics).leaves)


@pytest.mark.parametrize("passages", [1, 2, 3, 5, 9])
def test_smallest_corpora_are_clustered(passages: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((passages, 4)).astype(np.float32)

    tree = build(vectors)

    assert tree.depth >= 1
    assert tree.paths().shape == (passages, tree.depth)
    assert tree.place(vectors).shape == (passages, tree.depth)


def test_equal_vectors_share_one_node_at_every_level() -> None:
    tree = build(np.ones((100, 4), np.float32))

    assert level_node_counts(tree) == [1, 1]


def test_copies_of_vectors_share_leaf_nodes(topics: np.ndarray) -> None:
    three_copies = np.concatenate([topics[:40]] * 3)

    tree = build(three_copies, branching=2)

    np.testing.assert_array_equal(tree.leaves[:40], tree.leaves[40:80])
    assert len(tree.parents[-1]) == 40


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_without_direction_are_refused(topics: np.ndarray, value: float) -> None:
    topics[[7, 9]] = value

    with pytest.raises(FreshetError, match=r"vector 7 \(and 1 more\) has norm"):
        build(topics)


def test_empty_corpus_is_refused(topics: np.ndarray) -> None:
    with pytest.raises(FreshetError, match="is the corpus empty"):
        build(topics[:0])


def test_last_level_is_flat_kmeans(topics: np.ndarray) -> None:
    vectors = torch.from_numpy(topics)
    settings = HierarchySettings()

    tree = cluster_bottom_up(vectors, [5, 38], KMeans(settings, seed=1))

    flat = KMeans(settings, seed=1).cluster(vectors, 38)
    leaf_centroids = tree.centroids[1][tree.leaves]
    flat_centroids = flat.centroids.numpy()[flat.labels]
    np.testing.assert_array_equal(leaf_centroids, flat_centroids)


@pytest.fixture
def three_levels(topics: np.ndarray) -> Hierarchy:
    kmeans = KMeans(HierarchySettings(), seed=1)
    return cluster_bottom_up(torch.from_numpy(topics), [2, 9, 60], kmeans)


def test_levels_have_the_requested_nodes(three_levels: Hierarchy) -> None:
    assert level_node_counts(three_levels) == [2, 9, 60]


def test_centroid_is_the_mean_of_its_children(three_levels: Hierarchy) -> None:
    for level in (1, 2):
        child_centroids = three_levels.centroids[level]
        child_parents = three_levels.parents[level]
        for node, centroid in enumerate(three_levels.centroids[level - 1]):
            child_sum = child_centroids[child_parents == node].sum(0)
            mean = child_sum / np.linalg.norm(child_sum)
            np.testing.assert_allclose(centroid, mean, atol=1e-5)


def test_clustered_vectors_are_placed_where_they_are(
    topics: np.ndarray, three_levels: Hierarchy
) -> None:
    np.testing.assert_array_equal(three_levels.place(topics), three_levels.paths())


def test_numbered_nodes_keep_their_meaning() -> None:
    level_1 = torch.eye(2, 5)
    level_2 = torch.eye(5)
    parents = torch.tensor([1, 0, 1, 0, 1])
    leaves = torch.tensor([4, 4, 3, 0, 1, 2, 2, 2])

    tree = number_nodes([level_1, level_2], [torch.zeros(2, dtype=torch.long), parents], leaves)

    assert tree.sizes(1).tolist() == [6, 2]
    assert tree.sizes(2).tolist() == [3, 2, 1, 1, 1]
    for passage, (top, leaf) in enumerate(tree.paths()):
        old_leaf = leaves[passage]
        np.testing.assert_array_equal(tree.centroids[1][leaf], level_2[old_leaf])
        np.testing.assert_array_equal(tree.centroids[0][top], level_1[parents[old_leaf]])
