"""Guards the clustering benchmark: it measures both sides on the same vectors and computes what it claims."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.benchmarks.cluster import mean_cosine, rows, synthetic_vectors


def test_rows_are_measured_and_met_is_computed() -> None:
    pytest.importorskip("faiss")
    table = rows(passages=300, dimension=16, branching=8, iterations=5, repeats=1)
    assert [row["what"].split(",")[0] for row in table] == ["level 2"] * 2 + ["level 1"] * 2 + ["all levels"]
    assert {row["goal"] for row in table[:-1:2]} == {1.0}
    for row in table:
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["met"] == (row["ratio"] >= row["goal"])
    assert all(0.95 < row["ratio"] < 1.1 for row in table[:-1:2])


def test_mean_cosine_equals_a_loop() -> None:
    points, centroids = np.eye(3, dtype=np.float32), np.array([[1, 0, 0], [0, 0.6, 0.8]], np.float32)
    assert mean_cosine(points, centroids) == pytest.approx((1 + 0.6 + 0.8) / 3)


def test_synthetic_vectors_have_topics() -> None:
    vectors = synthetic_vectors(1200, 32, seed=0)
    assert vectors.shape == (1200, 32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(1200)
    assert cosines.max(axis=1).mean() > 0.5 > np.abs(cosines).mean()
