"""Guards fit to the hierarchy: placing, a twin clustered without the reference, and differences of means.

pytest tests/model_code/drift/test_fit.py
"""

from __future__ import annotations

import numpy as np

from model_code.drift.draws import draw_batches
from model_code.drift.fit import mean_difference, null_mean_difference, place, twin
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from tests.model_code.drift.unit_vectors import topical, tree, unit


def test_placing_is_the_nearest_centroid() -> None:
    vectors = topical(50, 0)
    hierarchy = tree(topical(200, 1))
    nodes, cosines = place(vectors, hierarchy.centroids[-1])
    assert nodes.tolist() == hierarchy.place(vectors)[:, -1].tolist()
    best = [max(float(c @ v) for c in hierarchy.centroids[-1]) for v in vectors]
    np.testing.assert_allclose(cosines, best, atol=1e-6)


def test_reference_documents_fit_a_twin_as_later_ones_do_and_not_the_hierarchy() -> None:
    draw = np.random.default_rng(0)
    vectors, later = unit(draw.standard_normal((600, 32))), unit(draw.standard_normal((600, 32)))
    hierarchy = build_hierarchy(vectors, HierarchySettings(max_iterations=10, branching=8, device="cpu"), seed=0)
    rows = np.arange(0, 600, 2)
    centroids, nodes = twin(vectors, hierarchy, rows, level=1, seed=0)
    assert set(nodes) <= set(range(len(hierarchy.parents[0])))
    assert len(centroids) == min(len(hierarchy.centroids[-1]), 300 // 8)
    naive, fair = (
        place(vectors[rows], each)[1].mean() - place(later, each)[1].mean()
        for each in (hierarchy.centroids[-1], centroids)
    )
    assert naive > 0.05
    assert abs(fair) < 0.015


def test_a_twin_is_the_same_for_the_same_seed() -> None:
    vectors = topical(120, 0)
    rows = np.arange(40)
    first, second = (twin(vectors, tree(vectors), rows, level=1, seed=0) for _ in range(2))
    assert all((ours == theirs).all() for ours, theirs in zip(first, second, strict=True))


def test_null_values_are_those_of_each_drawn_batch() -> None:
    values = np.random.default_rng(0).random(60)
    members = draw_batches(60, 15, 10, seed=0)
    expected = [mean_difference(values[~row], values[row]) for row in members]
    np.testing.assert_allclose(null_mean_difference(values, members), expected)
