"""Guards the fast tree: nodes divide their parent's passages, and every passage is at the nearest of its siblings."""

from __future__ import annotations

import numpy as np
import torch

from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.top_down import top_down


def test_a_centroid_is_the_mean_of_its_passages(topics: np.ndarray) -> None:
    tree = top_down(torch.from_numpy(topics), [2, 9, 60], HierarchySettings(), seed=1)
    assert [len(parents) for parents in tree.parents] == [2, 9, 60]
    for level in (1, 2, 3):
        for node, centroid in enumerate(tree.centroids[level - 1]):
            mean = topics[tree.documents_under(level, node)].sum(0)
            np.testing.assert_allclose(centroid, mean / np.linalg.norm(mean), atol=1e-5)


def test_greedy_descent_finds_every_passage(topics: np.ndarray) -> None:
    tree = top_down(torch.from_numpy(topics), [4, 40], HierarchySettings(), seed=1)
    for vector, path in zip(topics, tree.paths(), strict=True):
        node = 0
        for level in (1, 2):
            family = tree.children(level - 1, node)
            node = family[np.argmax(tree.centroids[level - 1][family] @ vector)]
            assert node == path[level - 1]


def test_members_are_mostly_placed_where_they_are(topics: np.ndarray) -> None:
    tree = top_down(torch.from_numpy(topics), [5, 38], HierarchySettings(), seed=1)
    assert (tree.place(topics) == tree.paths()).all(axis=1).mean() > 0.75


def test_a_lone_passage_is_a_chain_to_the_last_level() -> None:
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [-1, 0]]), dim=1)
    tree = top_down(vectors, [2, 3], HierarchySettings(), seed=0)
    lone = tree.path(3)
    assert tree.documents_under(1, lone[0]).tolist() == [3]
    assert tree.children(1, lone[0]).tolist() == [lone[1]]
