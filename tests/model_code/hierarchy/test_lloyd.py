"""Test Lloyd's iteration.

Bounds never change an assignment, and the objective never falls. Clusters do not stay empty. The
outcome depends neither on the order of points nor on the size of blocks. The numerical building
blocks equal loops in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.hierarchy import lloyd
from model_code.hierarchy.lloyd import (
    Lloyd,
    inner_products,
    paired_products,
    row_maxima,
    select_rows,
    sums_by_cluster,
)


def start_run(vectors: np.ndarray, start_points: list[int]) -> Lloyd:
    """Return a run whose first centroids are the points with these numbers."""
    tensor = torch.from_numpy(vectors)
    run = Lloyd(tensor, len(start_points))
    run.add_centroids(torch.arange(len(start_points)), tensor[start_points])
    return run


def assign_by_loops(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the nearest centroid of each point, by a double loop in float64."""
    labels = []
    for vector in vectors.astype(np.float64):
        best_cosine = -np.inf
        for number, centroid in enumerate(centroids.astype(np.float64)):
            cosine = sum(a * b for a, b in zip(vector, centroid, strict=True))
            if cosine > best_cosine:
                best_cosine = cosine
                label = number
        labels.append(label)
    return np.array(labels)


def centroids_by_loops(vectors: np.ndarray, labels: np.ndarray, clusters: int) -> np.ndarray:
    """Return the normalised sum of each cluster's members, by loops in float64."""
    sums = np.zeros((clusters, vectors.shape[1]))
    for vector, label in zip(vectors, labels, strict=True):
        sums[label] += vector.astype(np.float64)
    return np.stack([vector / np.sqrt((vector**2).sum()) for vector in sums])


def test_every_step_equals_loops(noise: np.ndarray) -> None:
    start_points = [3, 50, 80, 95, 101, 120, 150, 160, 199]
    run = start_run(noise, start_points)
    centroids = noise[start_points].astype(np.float64)

    for _ in range(40):
        something_moved = run.step()

        labels = assign_by_loops(noise, centroids)
        # The loops do not fill empty clusters.
        assert len(np.unique(labels)) == len(start_points)
        centroids = centroids_by_loops(noise, labels, len(start_points))
        np.testing.assert_array_equal(run.labels.numpy(), labels)
        np.testing.assert_allclose(run.centroids.numpy(), centroids, atol=1e-6)
        if not something_moved:
            break

    assert not something_moved


def test_bounds_save_inner_products(topics: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    product_counts = []

    def counted_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product_counts.append(len(left) * len(right))
        return inner_products(left, right)

    monkeypatch.setattr(lloyd, "inner_products", counted_products)
    run = start_run(topics, list(range(100)))

    steps = 1
    while run.step():
        steps += 1

    assert sum(product_counts) < 0.6 * steps * 300 * 100


def test_objective_never_falls(noise: np.ndarray) -> None:
    run = start_run(noise, list(range(12)))

    objectives = []
    while run.step():
        run.refresh_scores()
        objectives.append(run.objective)

    assert len(objectives) > 3
    assert (np.diff(objectives) > -1e-4).all()
    centroids_of_points = run.centroids.numpy()[run.labels.numpy()]
    objective = (noise.astype(np.float64) * centroids_of_points).sum()
    assert objectives[-1] == pytest.approx(objective, abs=1e-4)


def final_labels(vectors: np.ndarray, start_points: list[int]) -> np.ndarray:
    """Return the labels at the end of a run from the points with these numbers."""
    run = start_run(vectors, start_points)
    while run.step():
        pass
    return run.labels.numpy()


def test_labels_do_not_depend_on_order(topics: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(300)
    start_points = [5, 70, 99]
    shuffled_start_points = np.argsort(order)[start_points].tolist()

    labels = final_labels(topics, start_points)
    shuffled_labels = final_labels(topics[order], shuffled_start_points)

    np.testing.assert_array_equal(labels[order], shuffled_labels)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_BLOCK_POINTS", 7),
        ("MAX_BLOCK_PRODUCTS", 50),
        ("MAX_MOVED_SHARE", 0.0),
        ("MAX_MOVED_SHARE", 2.0),
    ],
)
def test_labels_do_not_depend_on_block_size(
    noise: np.ndarray, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_points = [0, 1, 2, 3, 4, 100, 101, 102]
    labels = final_labels(noise, start_points)

    monkeypatch.setattr(lloyd, name, value)

    np.testing.assert_array_equal(final_labels(noise, start_points), labels)


def test_empty_cluster_gets_the_farthest_point() -> None:
    angles = np.radians([0, 1, 2, 40, 89, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    # Clusters 0 and 1 start at the same point, so cluster 1 gets no point of its own.
    run = start_run(vectors, [0, 0, 4])

    run.step()

    assert run.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert run.sizes().tolist() == [3, 1, 2]


def test_equal_points_leave_a_cluster_empty() -> None:
    run = start_run(np.array([[1, 0]] * 4, np.float32), [0, 1])

    assert run.step()
    assert not run.step()
    assert sorted(run.sizes().tolist()) == [0, 4]


def test_opposite_members_keep_a_unit_centroid() -> None:
    run = start_run(np.array([[1, 0], [-1, 0]], np.float32), [0])

    run.step()

    np.testing.assert_allclose(run.centroids.norm(dim=1).numpy(), 1)


def test_products_equal_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    left_rows = torch.randn(5, 7, generator=generator)
    right_rows = torch.randn(5, 7, generator=generator)

    expected = np.zeros((5, 5))
    for i, left in enumerate(left_rows.double()):
        for j, right in enumerate(right_rows.double()):
            expected[i, j] = sum(a * b for a, b in zip(left, right, strict=True))

    np.testing.assert_allclose(inner_products(left_rows, right_rows), expected, rtol=1e-5)
    np.testing.assert_allclose(paired_products(left_rows, right_rows), np.diag(expected), rtol=1e-5)


def test_row_maximum_is_the_first_of_equals() -> None:
    rows = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, -2.0]])

    maxima, columns = row_maxima(rows)

    assert maxima.tolist() == [3.0, -2.0]
    assert columns.tolist() == [1, 2]


@pytest.mark.parametrize("rows", [[2, 3, 4], [0, 2, 5], [1], []])
def test_selected_rows_equal_indexing(rows: list[int]) -> None:
    matrix = torch.arange(12.0).reshape(6, 2)

    assert torch.equal(select_rows(matrix, torch.tensor(rows, dtype=torch.long)), matrix[rows])


def test_consecutive_rows_are_a_view() -> None:
    matrix = torch.arange(12.0).reshape(6, 2)

    assert select_rows(matrix, torch.tensor([2, 3])).data_ptr() == matrix[2].data_ptr()


def test_sums_by_cluster_equal_a_loop() -> None:
    vectors = torch.randn(20, 3)
    labels = torch.randint(0, 6, (20,))
    rows = torch.arange(0, 20, 2)

    clusters, sums = sums_by_cluster(vectors, labels, rows)

    expected: dict[int, torch.Tensor] = {}
    for row in rows.tolist():
        label = int(labels[row])
        expected[label] = expected.get(label, 0) + vectors[row].double()
    assert clusters.tolist() == sorted(expected)
    expected_sums = torch.stack([expected[label] for label in sorted(expected)])
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-6)
