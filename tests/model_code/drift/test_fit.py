"""Guards fit to the hierarchy: placing, placing as if a document had come later, and differences of means.

pytest tests/model_code/drift/test_fit.py
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.drift.draws import draw_batches
from model_code.drift.fit import mean_difference, null_mean_difference, place, place_left_out
from tests.model_code.drift.unit_vectors import TOPICS, topical, tree, unit


def test_placing_is_the_nearest_centroid() -> None:
    vectors = topical(50, 0)
    hierarchy = tree(topical(200, 1))
    nodes, cosines = place(vectors, hierarchy.centroids[-1])
    assert nodes.tolist() == hierarchy.place(vectors)[:, -1].tolist()
    best = [max(float(c @ v) for c in hierarchy.centroids[-1]) for v in vectors]
    np.testing.assert_allclose(cosines, best, atol=1e-6)


def test_left_out_is_placed_against_the_centroids_of_the_others() -> None:
    vectors = topical(60, 0)
    hierarchy = tree(vectors)
    rows = np.array([3, 17, 40])
    nodes, cosines = place_left_out(vectors, hierarchy.leaves, hierarchy.centroids[-1], rows)
    for row, node, cosine in zip(rows, nodes, cosines, strict=True):
        others = np.delete(np.arange(60), row)
        centroids = np.stack([vectors[others][hierarchy.leaves[others] == i].sum(axis=0) for i in range(TOPICS)])
        expected = place(vectors[[row]], unit(centroids))
        assert node == expected[0][0]
        assert cosine == pytest.approx(expected[1][0], abs=1e-6)


def test_the_only_document_of_a_node_moves_to_another() -> None:
    vectors = unit(np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]]))
    centroids = np.eye(2, dtype=np.float32)
    nodes, cosines = place_left_out(vectors, np.array([0, 0, 1]), centroids, np.array([2]))
    assert nodes.tolist() == [0]
    assert cosines[0] == pytest.approx(0, abs=1e-6)


def test_documents_that_made_the_centroids_look_nearer_than_they_are() -> None:
    chance = np.random.default_rng(0)
    vectors = unit(chance.standard_normal((400, 64)))
    leaves = np.repeat(np.arange(100), 4)  # four documents per node: each is a quarter of its centroid
    centroids = unit(np.stack([vectors[leaves == node].sum(axis=0) for node in range(100)]))
    fresh = place(unit(chance.standard_normal((400, 64))), centroids)[1].mean()
    naive = place(vectors, centroids)[1].mean()
    left_out = place_left_out(vectors, leaves, centroids, np.arange(400))[1].mean()
    assert naive - fresh > 0.1
    assert abs(left_out - fresh) < 0.01


def test_null_values_are_those_of_each_drawn_batch() -> None:
    values = np.random.default_rng(0).random(60)
    members = draw_batches(60, 15, 10, seed=0)
    expected = [mean_difference(values[~row], values[row]) for row in members]
    np.testing.assert_allclose(null_mean_difference(values, members), expected)
