"""Test the number of nodes per level against the paper's examples."""

from __future__ import annotations

import pytest

from model_code.hierarchy.settings import default_branching, level_sizes


@pytest.mark.parametrize(
    ("passages", "branching"),
    [(1_000_000, 128), (5_000_000, 256), (2_648, 16), (512, 8), (513, 16)],
)
def test_default_branching_is_the_papers(passages: int, branching: int) -> None:
    assert default_branching(passages) == branching


@pytest.mark.parametrize("passages", [17, 63, 64, 65, 511, 512, 513, 2_648, 109_739, 1_000_000])
def test_default_branching_gives_two_levels(passages: int) -> None:
    assert len(level_sizes(passages, default_branching(passages))) == 2


@pytest.mark.parametrize("passages", [1, 2, 7, 8, 9, 100])
def test_level_sizes_are_at_most_the_passages(passages: int) -> None:
    for branching in (2, 8, 200):
        sizes = level_sizes(passages, branching)
        assert sizes[-1] == -(-passages // branching)
        assert sizes == sorted(sizes)
