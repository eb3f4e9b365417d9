"""Guards the number of nodes per level (the paper's own examples), how children are apportioned, and their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy.shape import apportion, arrange
from model_code.hierarchy.sizes import default_branching, level_sizes


@pytest.mark.parametrize(
    ("passages", "branching"), [(1_000_000, 128), (5_000_000, 256), (2_648, 16), (512, 8), (513, 16)]
)
def test_default_branching_is_the_papers(passages: int, branching: int) -> None:
    assert default_branching(passages) == branching


@pytest.mark.parametrize("passages", [17, 63, 64, 65, 511, 512, 513, 2_648, 109_739, 1_000_000])
def test_default_branching_gives_two_levels(passages: int) -> None:
    assert len(level_sizes(passages, default_branching(passages))) == 2


@pytest.mark.parametrize("passages", [1, 2, 7, 8, 9, 100])
def test_there_is_always_a_level_and_never_more_nodes_than_passages(passages: int) -> None:
    for branching in (2, 8, 200):
        sizes = level_sizes(passages, branching)
        assert sizes[-1] == -(-passages // branching)
        assert sizes == sorted(sizes)


def test_apportioned_children_are_fair() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        sizes = torch.from_numpy(draw.integers(1, 40, 12))
        total = int(draw.integers(12, int(sizes.sum()) + 1))
        counts = apportion(sizes, total)
        assert counts.sum() == total
        assert (counts >= 1).all()
        assert (counts <= sizes).all()
        order = torch.argsort(sizes, stable=True)
        assert (torch.diff(counts[order])[torch.diff(sizes[order]) > 0] >= 0).all()


def test_arranged_nodes_keep_their_meaning() -> None:
    level_1, level_2 = torch.eye(2, 5), torch.eye(5)
    above, leaves = torch.tensor([1, 0, 1, 0, 1]), torch.tensor([4, 4, 3, 0, 1, 2, 2, 2])
    tree = arrange([level_1, level_2], [torch.zeros(2, dtype=torch.long), above], leaves)
    assert tree.sizes(1).tolist() == [6, 2]
    assert tree.sizes(2).tolist() == [3, 2, 1, 1, 1]
    for passage, (top, leaf) in enumerate(tree.paths()):
        np.testing.assert_array_equal(tree.centroids[1][leaf], level_2[leaves[passage]])
        np.testing.assert_array_equal(tree.centroids[0][top], level_1[above[leaves[passage]]])
