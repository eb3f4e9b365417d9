"""Tests of the clustering benchmark.

Both sides get the same vectors, the peer is honest, and the verdicts are computed.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from benchmarks import clustering
from benchmarks.clustering import algorithm_2, nearest, rows, synthetic_vectors
from tests.benchmarks.rows import check

SMALL = {"passages": 300, "dimension": 16, "branching": 8, "iterations": 5, "repeats": 1}


def test_rows_are_measured_and_met_is_computed() -> None:
    pytest.importorskip("faiss")

    table = rows(**SMALL, paper=200)

    assert [row["what"].split(",")[0] for row in table] == [
        "level 2",
        "level 2",
        "level 1",
        "level 1",
        "all levels",
        "200 x 16 into 25: mean cosine",
        "200 x 16 into 25: vectors/s",
    ]
    check(table)
    for row in table:
        if "cosine" in row["what"]:
            assert 0.95 < row["ratio"] < 1.1


def test_without_faiss_the_papers_algorithm_is_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_module(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_no_module)

    table = rows(**SMALL, paper=0)

    assert "against Algorithm 2" in table[0]["what"]


def test_large_measures_a_million_passages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measurements = []

    def levels(passages: int, **options: int) -> list[dict]:
        measurements.append((passages, options["repeats"]))
        return []

    monkeypatch.setattr(clustering, "levels", levels)

    rows(large=True, paper=0)

    assert measurements == [(1_000_000, 1)]


def cluster_by_loops(points: np.ndarray, labels: list[int]) -> list[np.ndarray]:
    """Return the centroids of four clusters: means and nearest centroids until no label changes."""
    for _ in range(50):
        centroids = []
        for cluster in range(4):
            members = [
                point for point, label in zip(points, labels, strict=True) if label == cluster
            ]
            total = sum(members)
            centroids.append(total / np.sqrt((total**2).sum()))
        new_labels = []
        for point in points:
            cosines = [point @ centroid for centroid in centroids]
            new_labels.append(int(np.argmax(cosines)))
        if new_labels == labels:
            break
        labels = new_labels
    return centroids


def test_algorithm_2_equals_loops_in_float64() -> None:
    points = torch.from_numpy(synthetic_vectors(60, 8, seed=3))
    vectors = torch.nn.functional.normalize(points, dim=1)
    generator = torch.Generator().manual_seed(5)
    random_labels = torch.randint(4, (60,), generator=generator).tolist()

    centroids = algorithm_2(vectors, 4, 50, seed=5)

    expected = cluster_by_loops(vectors.double().numpy(), random_labels)
    np.testing.assert_allclose(centroids.numpy(), expected, atol=1e-5)


def test_nearest_centroid_has_the_highest_cosine() -> None:
    centroids = torch.tensor([[1, 0, 0], [0, 0.6, 0.8]])

    cosines, labels = nearest(torch.eye(3), centroids)

    assert cosines.tolist() == pytest.approx([1, 0.6, 0.8])
    assert labels.tolist() == [0, 1, 1]


def test_synthetic_vectors_have_topics() -> None:
    vectors = synthetic_vectors(1200, 32, seed=0)

    assert vectors.shape == (1200, 32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    # A vector does not count as its own neighbour.
    cosines = unit @ unit.T - 2 * np.eye(1200)
    assert cosines.max(axis=1).mean() > 0.5
    assert np.abs(cosines).mean() < 0.5
