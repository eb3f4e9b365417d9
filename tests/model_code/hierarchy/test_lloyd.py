"""Guards Lloyd's iteration: the bounds may spare work but never change an assignment, the objective
never falls, clusters do not stay empty, the outcome does not depend on the order of points or on
the size of blocks, and its numerical building blocks equal loops in float64.
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


def started(vectors: np.ndarray, chosen: list[int]) -> Lloyd:
    """A run whose first centroids are the points `chosen`."""
    tensor = torch.from_numpy(vectors)
    run = Lloyd(tensor, len(chosen))
    run.add_centroids(torch.arange(len(chosen)), tensor[chosen])
    return run


def oracle_step(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The nearest centroid of each point, by a double loop in float64."""
    labels = []
    for vector in vectors.astype(np.float64):
        best, best_cosine = -1, -np.inf
        for number, centroid in enumerate(centroids.astype(np.float64)):
            cosine = sum(a * b for a, b in zip(vector, centroid, strict=True))
            if cosine > best_cosine:
                best, best_cosine = number, cosine
        labels.append(best)
    return np.array(labels)


def oracle_centroids(vectors: np.ndarray, labels: np.ndarray, clusters: int) -> np.ndarray:
    """The normalised sum of each cluster's members, by loops in float64."""
    centroids = np.zeros((clusters, vectors.shape[1]))
    for vector, label in zip(vectors, labels, strict=True):
        centroids[label] += vector.astype(np.float64)
    return np.stack([centroid / np.sqrt((centroid**2).sum()) for centroid in centroids])


def test_every_step_equals_the_oracles(noise: np.ndarray) -> None:
    chosen = [3, 50, 80, 95, 101, 120, 150, 160, 199]
    run = started(noise, chosen)
    centroids = noise[chosen].astype(np.float64)
    for _ in range(40):
        going = run.step()
        labels = oracle_step(noise, centroids)
        # else the oracle would have to fill empty clusters, too
        assert len(np.unique(labels)) == len(chosen)
        centroids = oracle_centroids(noise, labels, len(chosen))
        np.testing.assert_array_equal(run.labels.numpy(), labels)
        np.testing.assert_allclose(run.centroids.numpy(), centroids, atol=1e-6)
        if not going:
            break
    assert not going


def test_the_bound_spares_inner_products(
    topics: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = []
    whole = lloyd.inner_products
    monkeypatch.setattr(
        lloyd, "inner_products", lambda a, b: products.append(len(a) * len(b)) or whole(a, b)
    )
    run = started(topics, list(range(100)))
    steps = 1
    while run.step():
        steps += 1
    assert sum(products) < 0.6 * steps * 300 * 100


def test_the_objective_never_falls(noise: np.ndarray) -> None:
    run = started(noise, list(range(12)))
    objectives = []
    while run.step():
        run.refresh_scores()
        objectives.append(run.objective)
    assert len(objectives) > 3
    assert (np.diff(objectives) > -1e-4).all()
    exact = (noise.astype(np.float64) * run.centroids.numpy()[run.labels.numpy()]).sum()
    assert objectives[-1] == pytest.approx(exact, abs=1e-4)


def ended(vectors: np.ndarray, chosen: list[int]) -> np.ndarray:
    """The labels of a run from the points `chosen` to its end."""
    run = started(vectors, chosen)
    while run.step():
        pass
    return run.labels.numpy()


def test_equal_for_points_in_any_order(topics: np.ndarray) -> None:
    order = np.random.default_rng(0).permutation(300)
    shuffled = ended(topics[order], np.argsort(order)[[5, 70, 99]].tolist())
    np.testing.assert_array_equal(ended(topics, [5, 70, 99])[order], shuffled)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_BLOCK_POINTS", 7),
        ("MAX_BLOCK_PRODUCTS", 50),
        ("MAX_MOVED_SHARE", 0.0),
        ("MAX_MOVED_SHARE", 2.0),
    ],
)
def test_equal_for_blocks_of_any_size(noise, name, value, monkeypatch):
    chosen = [0, 1, 2, 3, 4, 100, 101, 102]
    expected = ended(noise, chosen)
    monkeypatch.setattr(lloyd, name, value)
    np.testing.assert_array_equal(ended(noise, chosen), expected)


def test_an_empty_cluster_gets_the_farthest_point() -> None:
    angles = np.radians([0, 1, 2, 40, 89, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    run = started(vectors, [0, 0, 4])  # clusters 0 and 1 start at the same point: 1 stays empty
    run.step()
    assert run.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert run.sizes().tolist() == [3, 1, 2]


def test_equal_points_leave_a_cluster_empty_and_end() -> None:
    run = started(np.array([[1, 0]] * 4, np.float32), [0, 1])
    assert run.step()
    assert not run.step()
    assert sorted(run.sizes().tolist()) == [0, 4]


def test_opposite_members_keep_a_unit_centroid() -> None:
    run = started(np.array([[1, 0], [-1, 0]], np.float32), [0])
    run.step()
    np.testing.assert_allclose(run.centroids.norm(dim=1).numpy(), 1)


def test_products_equal_loops() -> None:
    left, right = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    exact = [
        [sum(a * b for a, b in zip(x, y, strict=True)) for y in right.double()]
        for x in left.double()
    ]
    np.testing.assert_allclose(inner_products(left, right), exact, rtol=1e-5)
    np.testing.assert_allclose(paired_products(left, right), np.diag(exact), rtol=1e-5)


def test_largest_takes_the_first_of_equals() -> None:
    best, where = row_maxima(torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, -2.0]]))
    assert best.tolist() == [3.0, -2.0]
    assert where.tolist() == [1, 2]


def test_rows_are_a_view_only_where_consecutive() -> None:
    matrix = torch.arange(12.0).reshape(6, 2)
    for rows in ([2, 3, 4], [0, 2, 5], [1], []):
        assert torch.equal(select_rows(matrix, torch.tensor(rows, dtype=torch.long)), matrix[rows])
    assert select_rows(matrix, torch.tensor([2, 3])).data_ptr() == matrix[2].data_ptr()


def test_sums_equal_a_loop() -> None:
    vectors, labels, rows = torch.randn(20, 3), torch.randint(0, 6, (20,)), torch.arange(0, 20, 2)
    clusters, sums = sums_by_cluster(vectors, labels, rows)
    exact = {}
    for row in rows.tolist():
        exact[int(labels[row])] = exact.get(int(labels[row]), 0) + vectors[row].double()
    assert clusters.tolist() == sorted(exact)
    np.testing.assert_allclose(
        sums, torch.stack([exact[k] for k in sorted(exact)]), rtol=1e-5, atol=1e-6
    )
