"""Test clustering a sample of the passages and placing all passages in its clusters.

Run: python -m pytest tests/model_code/hierarchy/test_sample_clustering.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.hierarchy.build import build_hierarchy, level_sizes
from model_code.hierarchy.sample_clustering import draw_sample, place_all, sample_size, unit_rows
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy

PASSAGES = 4000
# The sample has 16 passages for each of 63 clusters.
SAMPLED = 1008
SETTINGS = HierarchySettings(branching=64, device="cpu")


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors around 100 centers, of different norms."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((100, 24), np.float32)
    noise = random.standard_normal((PASSAGES, 24), np.float32)
    return 3 * (centers[random.integers(0, 100, PASSAGES)] + 0.7 * noise)


@pytest.fixture(scope="module")
def sampled_tree(vectors: np.ndarray) -> Hierarchy:
    return build_hierarchy(vectors, SETTINGS, seed=0, max_clustered=SAMPLED)


def mean_cosine(tree: Hierarchy, vectors: np.ndarray) -> float:
    return float(np.vecdot(unit_rows(vectors), tree.centroids[-1][tree.leaves]).mean())


@pytest.mark.parametrize(
    ("passages", "clusters", "size"),
    [(900, 10, 900), (1000, 10, 1000), (5000, 10, 1000), (5000, 100, 1600), (5000, 400, 5000)],
)
def test_sample_has_the_limit_or_sixteen_per_cluster(
    passages: int, clusters: int, size: int
) -> None:
    assert sample_size(passages, clusters, max_clustered=1000) == size


def test_sample_has_different_ascending_passages() -> None:
    sample = draw_sample(1000, 300, seed=0)

    assert len(sample) == 300
    assert (np.diff(sample) > 0).all()


def test_up_to_the_limit_nothing_changes(vectors: np.ndarray) -> None:
    expected = build_hierarchy(vectors, SETTINGS, seed=0)

    tree = build_hierarchy(vectors, SETTINGS, seed=0, max_clustered=PASSAGES)

    assert tree.leaves.tobytes() == expected.leaves.tobytes()
    assert tree.centroids[-1].tobytes() == expected.centroids[-1].tobytes()


def test_sampled_tree_places_every_passage(sampled_tree: Hierarchy) -> None:
    nodes = [len(parents) for parents in sampled_tree.parents]

    assert len(sampled_tree.leaves) == PASSAGES
    assert nodes == level_sizes(PASSAGES, branching=64)


def test_sampling_costs_little_cosine(sampled_tree: Hierarchy, vectors: np.ndarray) -> None:
    expected = build_hierarchy(vectors, SETTINGS, seed=0)

    assert mean_cosine(sampled_tree, vectors) > 0.97 * mean_cosine(expected, vectors)


def test_centroids_are_means_of_all_their_passages(
    sampled_tree: Hierarchy, vectors: np.ndarray
) -> None:
    leaf = int(np.bincount(sampled_tree.leaves).argmax())
    mean = unit_rows(vectors)[sampled_tree.leaves == leaf].mean(axis=0)

    np.testing.assert_allclose(
        sampled_tree.centroids[-1][leaf], mean / np.linalg.norm(mean), atol=1e-5
    )


def test_same_seed_gives_the_same_tree(sampled_tree: Hierarchy, vectors: np.ndarray) -> None:
    tree = build_hierarchy(vectors, SETTINGS, seed=0, max_clustered=SAMPLED)

    assert tree.leaves.tobytes() == sampled_tree.leaves.tobytes()


def test_vectors_may_be_memory_mapped(
    sampled_tree: Hierarchy, vectors: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")

    tree = build_hierarchy(mapped, SETTINGS, seed=0, max_clustered=SAMPLED)

    assert tree.leaves.tobytes() == sampled_tree.leaves.tobytes()


def test_bad_vector_outside_the_sample_is_refused(vectors: np.ndarray) -> None:
    sample = draw_sample(PASSAGES, SAMPLED, seed=0)
    outside = int(np.setdiff1d(np.arange(PASSAGES), sample)[0])
    damaged = vectors.copy()
    damaged[outside] = 0

    with pytest.raises(FreshetError, match=f"vector {outside} .* has norm 0"):
        build_hierarchy(damaged, SETTINGS, seed=0, max_clustered=SAMPLED)


def test_clusters_without_passages_are_left_out() -> None:
    three_directions = np.eye(3, dtype=np.float32)
    tree = Hierarchy((three_directions,), (np.zeros(3, np.int32),), np.arange(3, dtype=np.int32))

    clustering = place_all(tree, three_directions[[0, 2, 2]])

    assert clustering.labels.tolist() == [0, 1, 1]
    assert clustering.centroids.tolist() == three_directions[[0, 2]].tolist()


@pytest.mark.parametrize("branching", [3, 8, 64])
def test_wide_beam_finds_the_nearest_leaves(vectors: np.ndarray, branching: int) -> None:
    settings = HierarchySettings(branching=branching, device="cpu", max_iterations=3)
    tree = build_hierarchy(vectors[:1000], settings, seed=0)

    found = tree.nearest_leaves(vectors, beam=10_000)

    np.testing.assert_array_equal(found, tree.nearest_leaves(vectors))


def test_narrow_beam_mostly_finds_the_nearest_leaves(vectors: np.ndarray) -> None:
    tree = build_hierarchy(vectors, HierarchySettings(branching=8, device="cpu"), seed=0)

    found = tree.nearest_leaves(vectors, beam=8)

    assert (found == tree.nearest_leaves(vectors)).mean() > 0.9
