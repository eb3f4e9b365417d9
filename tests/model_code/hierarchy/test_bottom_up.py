"""Guards the paper's tree: its last level is flat k-means, its upper levels are means of the centroids below."""

from __future__ import annotations

import numpy as np
import torch

from model_code.hierarchy.bottom_up import bottom_up
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.spherical_kmeans import spherical_kmeans


def test_the_last_level_is_flat_kmeans(topics: np.ndarray) -> None:
    vectors, settings = torch.from_numpy(topics), HierarchySettings()
    tree = bottom_up(vectors, [5, 38], settings, seed=1)
    flat = spherical_kmeans(vectors, 38, settings, seed=1)
    np.testing.assert_array_equal(tree.centroids[1][tree.leaves], flat.centroids.numpy()[flat.labels])


def test_a_centroid_is_the_unweighted_mean_of_its_children(topics: np.ndarray) -> None:
    tree = bottom_up(torch.from_numpy(topics), [2, 9, 60], HierarchySettings(), seed=1)
    assert [len(parents) for parents in tree.parents] == [2, 9, 60]
    for level in (1, 2):
        for node, centroid in enumerate(tree.centroids[level - 1]):
            mean = tree.centroids[level][tree.children(level, node)].sum(0)
            np.testing.assert_allclose(centroid, mean / np.linalg.norm(mean), atol=1e-5)


def test_members_are_placed_where_they_are(topics: np.ndarray) -> None:
    tree = bottom_up(torch.from_numpy(topics), [5, 38], HierarchySettings(), seed=1)
    np.testing.assert_array_equal(tree.place(topics), tree.paths())
