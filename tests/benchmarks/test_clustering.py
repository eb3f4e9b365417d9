"""Guards the clustering benchmark: both sides on the same vectors, an honest peer, and verdicts
that are computed.
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
        *["level 2"] * 2,
        *["level 1"] * 2,
        "all levels",
        *["200 x 16 into 25: mean cosine", "200 x 16 into 25: vectors/s"],
    ]
    check(table)
    assert all(0.95 < row["ratio"] < 1.1 for row in table if "cosine" in row["what"])


def test_without_faiss_the_papers_algorithm_is_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    table = rows(**SMALL, paper=0)
    assert "against Algorithm 2" in table[0]["what"]


def test_large_is_a_million_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        clustering, "levels", lambda passages, **options: asked.append((passages, options)) or []
    )
    rows(large=True, paper=0)
    assert [(passages, options["repeats"]) for passages, options in asked] == [(1_000_000, 1)]


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
    vectors = torch.nn.functional.normalize(
        torch.from_numpy(synthetic_vectors(60, 8, seed=3)), dim=1
    )
    random_labels = torch.randint(4, (60,), generator=torch.Generator().manual_seed(5)).tolist()

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
    cosines = unit @ unit.T - 2 * np.eye(1200)
    assert cosines.max(axis=1).mean() > 0.5 > np.abs(cosines).mean()
