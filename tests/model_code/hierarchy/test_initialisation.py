"""Guards where k-means starts: distinct points of the right group, far-off ones preferred, equal for equal seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy.initialisation import ROUNDS, draw, initialise
from model_code.hierarchy.lloyd import Lloyd

METHODS = ("plus_plus", "points", "assignment")


def run_over(vectors: np.ndarray, groups: torch.Tensor, counts: list[int]) -> Lloyd:
    """A run that has not started."""
    return Lloyd(torch.from_numpy(vectors), groups, torch.tensor(counts))


@pytest.mark.parametrize("method", METHODS)
def test_every_point_has_a_cluster_of_its_group(topics: np.ndarray, method: str) -> None:
    groups = torch.arange(300) // 100
    run = run_over(topics, groups, [1, 9, 100])
    initialise(run, method, seed=1)
    assert torch.equal(run.group_of[run.labels], groups)


@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_drawn_centroids_are_distinct_points_of_their_group(topics: np.ndarray, rounds: int) -> None:
    groups = torch.arange(300) // 100
    run = run_over(topics, groups, [1, 9, 100])
    draw(run, rounds, torch.Generator().manual_seed(0))
    points = [int(np.flatnonzero((topics == centroid).all(1))[0]) for centroid in run.centroids.numpy()]
    assert len(set(points)) == 110
    assert groups[points].tolist() == run.group_of.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_equal_for_equal_seeds_only(topics: np.ndarray, method: str) -> None:
    starts = []
    for seed in (1, 1, 2):
        run = run_over(topics, torch.zeros(300, dtype=torch.long), [20])
        initialise(run, method, seed)
        starts.append(run.centroids)
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_more_rounds_draw_from_more_topics() -> None:
    vectors = np.eye(8, dtype=np.float32)[[0] * 93 + list(range(1, 8))]

    def topics_hit(rounds: int, seed: int) -> int:
        run = run_over(vectors, torch.zeros(100, dtype=torch.long), [8])
        draw(run, rounds, torch.Generator().manual_seed(seed))
        return len(torch.unique(run.centroids, dim=0))

    assert np.mean([topics_hit(1, seed) for seed in range(20)]) < 3
    assert all(topics_hit(8, seed) == 8 for seed in range(20))
