"""Guards k-means as a whole: as good as faiss.Kmeans on the same data, deterministic, and sound on degenerate data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.spherical_kmeans import APART, STARTS, spherical_kmeans, split_groups

METHODS = ("plus_plus", "points", "assignment")


@pytest.mark.parametrize("clusters", [5, 20, 100])
def test_objective_within_one_percent_of_faiss(topics: np.ndarray, clusters: int) -> None:
    faiss = pytest.importorskip("faiss")
    settings = HierarchySettings(max_iterations=25)
    ours, peers = [], []
    for seed in range(1, 21):  # single runs differ by percents where there are fewer clusters than topics
        ours.append(spherical_kmeans(torch.from_numpy(topics), clusters, settings, seed).objective)
        peer = faiss.Kmeans(16, clusters, niter=25, spherical=True, seed=seed, min_points_per_centroid=1)
        peer.train(topics)
        peers.append((topics @ peer.centroids.T).max(axis=1).sum())
    assert np.mean(ours) > 0.99 * np.mean(peers)


@pytest.mark.parametrize("method", METHODS)
def test_outcome_is_consistent(topics: np.ndarray, method: str) -> None:
    clustering = spherical_kmeans(torch.from_numpy(topics), 30, HierarchySettings(initialisation=method), seed=0)
    labels, centroids = clustering.labels.numpy(), clustering.centroids.numpy()
    assert len(centroids) == 30
    assert np.bincount(labels, minlength=30).min() >= 1
    for cluster in range(30):
        mean = topics[labels == cluster].sum(0, dtype=np.float64)
        np.testing.assert_allclose(centroids[cluster], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(labels, (topics @ centroids.T).argmax(1))
    assert clustering.objective == pytest.approx((topics * centroids[labels]).sum(), rel=1e-5)


def test_equal_seeds_give_equal_bytes(noise: np.ndarray) -> None:
    one, two, other = (spherical_kmeans(torch.from_numpy(noise), 9, HierarchySettings(), seed) for seed in (1, 1, 2))
    assert one.centroids.numpy().tobytes() == two.centroids.numpy().tobytes()
    assert one.centroids.numpy().tobytes() != other.centroids.numpy().tobytes()


@pytest.mark.parametrize("method", ["plus_plus", "points"])
@pytest.mark.parametrize(
    ("distinct", "copies", "wanted"), [(1, 1, 1), (1, 5, 3), (2, 1, 5), (4, 3, 12), (4, 3, 3), (7, 1, 7)]
)
def test_duplicates_and_more_clusters_than_points(method: str, distinct: int, copies: int, wanted: int) -> None:
    vectors = torch.eye(8)[:distinct].repeat(copies, 1)
    clustering = spherical_kmeans(vectors, wanted, HierarchySettings(initialisation=method), seed=0)
    assert len(clustering.centroids) == min(distinct, wanted)
    assert torch.equal(clustering.labels.unique(), torch.arange(min(distinct, wanted)))
    if wanted >= distinct:
        assert clustering.objective == pytest.approx(len(vectors))


def test_the_papers_start_leaves_no_empty_cluster() -> None:
    settings = HierarchySettings(initialisation="assignment")
    for seed in range(10):
        clustering = spherical_kmeans(torch.eye(8), 8, settings, seed)
        assert torch.equal(clustering.labels.unique(), torch.arange(8))


def test_splitting_groups_is_clustering_each(topics: np.ndarray) -> None:
    groups = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 300))
    clustering = split_groups(torch.from_numpy(topics), groups, torch.tensor([1, 4, 500]), HierarchySettings(), seed=0)
    assert torch.equal(clustering.groups[clustering.labels], groups)
    sizes = torch.bincount(groups)
    assert torch.bincount(clustering.groups).tolist() == [1, 4, int(sizes[2])]
    mean = topics[groups == 0].sum(0, dtype=np.float64)
    np.testing.assert_allclose(clustering.centroids[0].numpy(), mean / np.linalg.norm(mean), atol=1e-6)


def test_a_small_run_is_the_best_of_some_starts(noise: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, settings = torch.from_numpy(noise), HierarchySettings()

    def objective(seed: int) -> float:
        return spherical_kmeans(vectors, 12, settings, seed).objective

    best = objective(0)
    monkeypatch.setattr("model_code.hierarchy.spherical_kmeans.SMALL", 12 * len(noise) - 1)
    single = [objective(APART * start) for start in range(STARTS)]
    assert best == max(single) > min(single)


def test_stops_at_the_cap_and_by_tolerance(noise: np.ndarray) -> None:
    vectors, reported = torch.from_numpy(noise), []

    def progress(*seen: object) -> None:
        reported.append(seen)

    def iterations(**settings: float) -> int:
        return spherical_kmeans(vectors, 12, HierarchySettings(**settings), 0, progress).iterations

    assert iterations(max_iterations=3) == 3
    assert reported == [(1, 3, "k-means iterations"), (2, 3, "k-means iterations"), (3, 3, "k-means iterations")]
    assert 1 < iterations(tolerance=0.05) < iterations() < 100
