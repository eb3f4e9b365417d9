"""Guards the numerical building blocks of k-means against loops in float64."""

from __future__ import annotations

import numpy as np
import torch

from model_code.hierarchy.products import inner_products, largest, paired_products, some_rows, sums_by_cluster


def test_products_equal_loops() -> None:
    left, right = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    exact = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in right.double()] for x in left.double()]
    np.testing.assert_allclose(inner_products(left, right), exact, rtol=1e-5)
    np.testing.assert_allclose(paired_products(left, right), np.diag(exact), rtol=1e-5)


def test_largest_takes_the_first_of_equals() -> None:
    best, where = largest(torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, -2.0]]))
    assert best.tolist() == [3.0, -2.0]
    assert where.tolist() == [1, 2]


def test_rows_are_a_view_only_where_consecutive() -> None:
    matrix = torch.arange(12.0).reshape(6, 2)
    for rows in ([2, 3, 4], [0, 2, 5], [1], []):
        assert torch.equal(some_rows(matrix, torch.tensor(rows, dtype=torch.long)), matrix[rows])
    assert some_rows(matrix, torch.tensor([2, 3])).data_ptr() == matrix[2].data_ptr()


def test_sums_equal_a_loop() -> None:
    vectors, labels, rows = torch.randn(20, 3), torch.randint(0, 6, (20,)), torch.arange(0, 20, 2)
    clusters, sums = sums_by_cluster(vectors, labels, rows)
    exact = {}
    for row in rows.tolist():
        exact[int(labels[row])] = exact.get(int(labels[row]), 0) + vectors[row].double()
    assert clusters.tolist() == sorted(exact)
    np.testing.assert_allclose(sums, torch.stack([exact[k] for k in sorted(exact)]), rtol=1e-5, atol=1e-6)
