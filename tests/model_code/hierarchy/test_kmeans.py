"""Guards k-means as a whole: as good as faiss.Kmeans on the same data, deterministic, sound on
degenerate data, and started from distinct points, far-off ones preferred.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy import kmeans
from model_code.hierarchy.kmeans import (
    INITIALISATION_ROUNDS,
    SEED_STEP,
    STARTS_OF_SMALL_RUN,
    KMeans,
    initialise,
)
from model_code.hierarchy.lloyd import Lloyd
from model_code.hierarchy.settings import HierarchySettings


@pytest.mark.parametrize("clusters", [5, 20, 100])
def test_objective_within_one_percent_of_faiss(topics: np.ndarray, clusters: int) -> None:
    faiss = pytest.importorskip("faiss")
    settings = HierarchySettings(max_iterations=25)
    ours, peers = [], []
    # single runs differ by percents where there are fewer clusters than topics
    for seed in range(1, 21):
        ours.append(KMeans(settings, seed).cluster(torch.from_numpy(topics), clusters).objective)
        peer = faiss.Kmeans(
            16, clusters, niter=25, spherical=True, seed=seed, min_points_per_centroid=1
        )
        peer.train(topics)
        peers.append((topics @ peer.centroids.T).max(axis=1).sum())
    assert np.mean(ours) > 0.99 * np.mean(peers)


def test_outcome_is_consistent(topics: np.ndarray) -> None:
    clustering = KMeans(HierarchySettings(), seed=0).cluster(torch.from_numpy(topics), 30)
    labels, centroids = clustering.labels.numpy(), clustering.centroids.numpy()
    assert len(centroids) == 30
    assert np.bincount(labels, minlength=30).min() >= 1
    for cluster in range(30):
        mean = topics[labels == cluster].sum(0, dtype=np.float64)
        np.testing.assert_allclose(centroids[cluster], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(labels, (topics @ centroids.T).argmax(1))
    assert clustering.objective == pytest.approx((topics * centroids[labels]).sum(), rel=1e-5)


def test_equal_seeds_give_equal_bytes(noise: np.ndarray) -> None:
    one, two, other = (
        KMeans(HierarchySettings(), seed).cluster(torch.from_numpy(noise), 9) for seed in (1, 1, 2)
    )
    assert one.centroids.numpy().tobytes() == two.centroids.numpy().tobytes()
    assert one.centroids.numpy().tobytes() != other.centroids.numpy().tobytes()


@pytest.mark.parametrize(
    ("distinct", "copies", "wanted"),
    [(1, 1, 1), (1, 5, 3), (2, 1, 5), (4, 3, 12), (4, 3, 3), (7, 1, 7)],
)
def test_duplicates_and_more_clusters_than_points(distinct: int, copies: int, wanted: int) -> None:
    vectors = torch.eye(8)[:distinct].repeat(copies, 1)
    clustering = KMeans(HierarchySettings(), seed=0).cluster(vectors, wanted)
    assert len(clustering.centroids) == min(distinct, wanted)
    assert torch.equal(clustering.labels.unique(), torch.arange(min(distinct, wanted)))
    if wanted >= distinct:
        assert clustering.objective == pytest.approx(len(vectors))


def test_small_run_is_the_best_of_starts(
    noise: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, settings = torch.from_numpy(noise), HierarchySettings()

    def objective(seed: int) -> float:
        return KMeans(settings, seed).cluster(vectors, 12).objective

    best = objective(0)
    monkeypatch.setattr("model_code.hierarchy.kmeans.MAX_SMALL_RUN", 12 * len(noise) - 1)
    single = [objective(SEED_STEP * start) for start in range(STARTS_OF_SMALL_RUN)]
    assert best == max(single) > min(single)


def test_stops_at_the_cap(noise: np.ndarray) -> None:
    reported: list[object] = []

    def iterations(**settings: float) -> list[object]:
        reported.clear()
        run = KMeans(HierarchySettings(**settings), 0, lambda *seen: reported.append(seen))
        run.cluster(torch.from_numpy(noise), 12)
        return reported

    assert iterations(max_iterations=3) == [(done, 3, "k-means iterations") for done in (1, 2, 3)]
    assert 3 < len(iterations()) < 100


@pytest.mark.parametrize("rounds", [1, INITIALISATION_ROUNDS])
def test_drawn_centroids_are_distinct_points(
    topics: np.ndarray, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmeans, "INITIALISATION_ROUNDS", rounds)
    run = Lloyd(torch.from_numpy(topics), 110)
    initialise(run, seed=0)
    assert set(run.labels.tolist()) == set(range(110))
    points = [
        int(np.flatnonzero((topics == centroid).all(1))[0]) for centroid in run.centroids.numpy()
    ]
    assert len(set(points)) == 110


def test_more_rounds_draw_from_more_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.eye(8, dtype=np.float32)[[0] * 93 + list(range(1, 8))]

    def topics_hit(rounds: int, seed: int) -> int:
        run = Lloyd(torch.from_numpy(vectors), 8)
        monkeypatch.setattr(kmeans, "INITIALISATION_ROUNDS", rounds)
        initialise(run, seed)
        return len(torch.unique(run.centroids, dim=0))

    assert np.mean([topics_hit(1, seed) for seed in range(20)]) < 3
    assert all(topics_hit(8, seed) == 8 for seed in range(20))
