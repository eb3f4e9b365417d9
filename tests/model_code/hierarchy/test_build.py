"""Guards the building of a hierarchy: deterministic, every passage once per level, sound on the
smallest and most degenerate corpora, clear about vectors that cannot be clustered; and the index
that it gives away.
"""

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
    """The hierarchy of seed 0."""
    return build_hierarchy(vectors, HierarchySettings(branching=branching), seed=0)


@pytest.mark.parametrize(
    ("branching", "nodes"), [(None, [5, 38]), (3, [2, 4, 12, 34, 100]), (299, [2]), (400, [1])]
)
def test_levels_and_their_sizes(
    topics: np.ndarray, branching: int | None, nodes: list[int]
) -> None:
    tree = build(topics, branching)
    found = [len(parents) for parents in tree.parents]
    assert found == nodes
    for level, centroids in enumerate(tree.centroids, start=1):
        np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
        assert centroids.dtype == np.float32
        assert tree.sizes(level).sum() == 300
        assert tree.sizes(level).min() >= 1
    for level in range(1, tree.depth):
        np.testing.assert_array_equal(
            tree.parents[level][tree.paths()[:, level]], tree.paths()[:, level - 1]
        )


def test_only_directions_count(topics: np.ndarray) -> None:
    scaled = topics * 2.0 ** np.arange(300)[:, None].astype(np.float32).clip(0, 20)
    np.testing.assert_array_equal(build(topics).leaves, build(scaled).leaves)


@pytest.mark.parametrize("passages", [1, 2, 3, 5, 9])
def test_the_smallest_corpora(passages: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((passages, 4)).astype(np.float32)
    tree = build(vectors)
    assert tree.depth >= 1
    assert tree.paths().shape == (passages, tree.depth)
    assert tree.place(vectors).shape == (passages, tree.depth)


def test_equal_vectors_share_one_node_at_every_level(topics: np.ndarray) -> None:
    tree = build(np.ones((100, 4), np.float32))
    assert [len(parents) for parents in tree.parents] == [1, 1]
    tree = build(np.concatenate([topics[:40]] * 3), branching=2)
    np.testing.assert_array_equal(tree.leaves[:40], tree.leaves[40:80])
    assert len(tree.parents[-1]) == 40


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_without_direction_are_refused(topics: np.ndarray, value: float) -> None:
    topics[[7, 9]] = value
    with pytest.raises(FreshetError, match=r"vector 7 \(and 1 more\) has norm"):
        build(topics)
    with pytest.raises(FreshetError, match="is the corpus empty"):
        build(topics[:0])


def test_the_last_level_is_flat_kmeans(topics: np.ndarray) -> None:
    vectors, settings = torch.from_numpy(topics), HierarchySettings()
    tree = cluster_bottom_up(vectors, [5, 38], KMeans(settings, seed=1))
    flat = KMeans(settings, seed=1).cluster(vectors, 38)
    np.testing.assert_array_equal(
        tree.centroids[1][tree.leaves], flat.centroids.numpy()[flat.labels]
    )


def test_centroid_is_the_mean_of_its_children(
    topics,
):
    tree = cluster_bottom_up(
        torch.from_numpy(topics), [2, 9, 60], KMeans(HierarchySettings(), seed=1)
    )
    assert [len(parents) for parents in tree.parents] == [2, 9, 60]
    for level in (1, 2):
        for node, centroid in enumerate(tree.centroids[level - 1]):
            mean = tree.centroids[level][tree.parents[level] == node].sum(0)
            np.testing.assert_allclose(centroid, mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_array_equal(tree.place(topics), tree.paths())


def test_arranged_nodes_keep_their_meaning() -> None:
    level_1, level_2 = torch.eye(2, 5), torch.eye(5)
    above, leaves = torch.tensor([1, 0, 1, 0, 1]), torch.tensor([4, 4, 3, 0, 1, 2, 2, 2])
    tree = number_nodes([level_1, level_2], [torch.zeros(2, dtype=torch.long), above], leaves)
    assert tree.sizes(1).tolist() == [6, 2]
    assert tree.sizes(2).tolist() == [3, 2, 1, 1, 1]
    for passage, (top, leaf) in enumerate(tree.paths()):
        np.testing.assert_array_equal(tree.centroids[1][leaf], level_2[leaves[passage]])
        np.testing.assert_array_equal(tree.centroids[0][top], level_1[above[leaves[passage]]])
