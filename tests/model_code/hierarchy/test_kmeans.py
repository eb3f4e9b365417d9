"""Test k-means: quality beside faiss, determinism, degenerate data, and initial centroids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy import kmeans
from model_code.hierarchy.kmeans import (
    INITIALISATION_ROUNDS,
    SEED_STEP,
    STARTS_OF_SMALL_RUN,
    Clustering,
    KMeans,
    initialise,
)
from model_code.hierarchy.lloyd import Lloyd
from model_code.hierarchy.settings import HierarchySettings


@pytest.mark.parametrize("clusters", [5, 20, 100])
def test_objective_within_one_percent_of_faiss(topics: np.ndarray, clusters: int) -> None:
    faiss = pytest.importorskip("faiss")
    settings = HierarchySettings(max_iterations=25)

    objectives = []
    faiss_objectives = []
    # Single runs differ by percents if there are fewer clusters than topics.
    for seed in range(1, 21):
        clustering = KMeans(settings, seed).cluster(torch.from_numpy(topics), clusters)
        objectives.append(clustering.objective)

        faiss_kmeans = faiss.Kmeans(
            16, clusters, niter=25, spherical=True, seed=seed, min_points_per_centroid=1
        )
        faiss_kmeans.train(topics)
        cosines = topics @ faiss_kmeans.centroids.T
        faiss_objectives.append(cosines.max(axis=1).sum())

    assert np.mean(objectives) > 0.99 * np.mean(faiss_objectives)


@pytest.fixture
def clustering(topics: np.ndarray) -> Clustering:
    return KMeans(HierarchySettings(), seed=0).cluster(torch.from_numpy(topics), 30)


def test_no_cluster_is_empty(clustering: Clustering) -> None:
    assert len(clustering.centroids) == 30
    assert np.bincount(clustering.labels.numpy(), minlength=30).min() >= 1


def test_centroid_is_the_mean_of_its_points(clustering: Clustering, topics: np.ndarray) -> None:
    labels = clustering.labels.numpy()

    for cluster, centroid in enumerate(clustering.centroids.numpy()):
        point_sum = topics[labels == cluster].sum(0, dtype=np.float64)
        mean = point_sum / np.linalg.norm(point_sum)
        np.testing.assert_allclose(centroid, mean, atol=1e-6)


def test_points_belong_to_the_nearest_centroid(clustering: Clustering, topics: np.ndarray) -> None:
    cosines = topics @ clustering.centroids.numpy().T

    np.testing.assert_array_equal(clustering.labels.numpy(), cosines.argmax(1))


def test_objective_is_the_sum_of_cosines(clustering: Clustering, topics: np.ndarray) -> None:
    centroids = clustering.centroids.numpy()[clustering.labels.numpy()]

    assert clustering.objective == pytest.approx((topics * centroids).sum(), rel=1e-5)


def test_equal_seeds_give_equal_bytes(noise: np.ndarray) -> None:
    def centroid_bytes(seed: int) -> bytes:
        clustering = KMeans(HierarchySettings(), seed).cluster(torch.from_numpy(noise), 9)
        return clustering.centroids.numpy().tobytes()

    assert centroid_bytes(1) == centroid_bytes(1)
    assert centroid_bytes(1) != centroid_bytes(2)


@pytest.mark.parametrize(
    ("distinct", "copies", "clusters"),
    [(1, 1, 1), (1, 5, 3), (2, 1, 5), (4, 3, 12), (4, 3, 3), (7, 1, 7)],
)
def test_clusters_are_at_most_the_distinct_points(
    distinct: int, copies: int, clusters: int
) -> None:
    vectors = torch.eye(8)[:distinct].repeat(copies, 1)

    clustering = KMeans(HierarchySettings(), seed=0).cluster(vectors, clusters)

    expected_clusters = min(distinct, clusters)
    assert len(clustering.centroids) == expected_clusters
    assert torch.equal(clustering.labels.unique(), torch.arange(expected_clusters))
    if clusters >= distinct:
        assert clustering.objective == pytest.approx(len(vectors))


def test_small_run_is_the_best_of_starts(
    noise: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def objective(seed: int) -> float:
        kmeans = KMeans(HierarchySettings(), seed)
        return kmeans.cluster(torch.from_numpy(noise), 12).objective

    best_objective = objective(0)
    # The run is now too large for several starts.
    monkeypatch.setattr("model_code.hierarchy.kmeans.MAX_SMALL_RUN", 12 * len(noise) - 1)
    objectives = [objective(SEED_STEP * start) for start in range(STARTS_OF_SMALL_RUN)]

    assert best_objective == max(objectives)
    assert min(objectives) < max(objectives)


class RecordedProgress:
    """Keep the arguments of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __call__(self, *arguments: object) -> None:
        self.calls.append(arguments)


def test_iterations_stop_at_the_limit(noise: np.ndarray) -> None:
    progress = RecordedProgress()

    KMeans(HierarchySettings(max_iterations=3), 0, progress).cluster(torch.from_numpy(noise), 12)

    assert progress.calls == [(done, 3, "k-means iterations") for done in (1, 2, 3)]


def test_iterations_stop_when_nothing_moves(noise: np.ndarray) -> None:
    progress = RecordedProgress()

    KMeans(HierarchySettings(), 0, progress).cluster(torch.from_numpy(noise), 12)

    assert 3 < len(progress.calls) < 100


@pytest.mark.parametrize("rounds", [1, INITIALISATION_ROUNDS])
def test_drawn_centroids_are_distinct_points(
    topics: np.ndarray, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmeans, "INITIALISATION_ROUNDS", rounds)
    run = Lloyd(torch.from_numpy(topics), 110)

    initialise(run, seed=0)

    assert set(run.labels.tolist()) == set(range(110))
    drawn_points = set()
    for centroid in run.centroids.numpy():
        is_equal = (topics == centroid).all(axis=1)
        drawn_points.add(int(np.flatnonzero(is_equal)[0]))
    assert len(drawn_points) == 110


def test_more_rounds_draw_from_more_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    # 93 points of one topic, and one point of each of seven others.
    topic_numbers = [0] * 93 + list(range(1, 8))
    vectors = torch.eye(8)[topic_numbers]

    def drawn_topics(rounds: int, seed: int) -> int:
        run = Lloyd(vectors, 8)
        monkeypatch.setattr(kmeans, "INITIALISATION_ROUNDS", rounds)
        initialise(run, seed)
        return len(torch.unique(run.centroids, dim=0))

    assert np.mean([drawn_topics(1, seed) for seed in range(20)]) < 3
    assert all(drawn_topics(8, seed) == 8 for seed in range(20))
