"""Inner products and their largest, by the fastest routine at hand: numpy's on a CPU, torch's on a GPU."""

from __future__ import annotations

import numpy as np
import torch


def inner_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """All inner products of the rows of `left` (n, H) and `right` (k, H): (n, k)."""
    if left.is_cuda:
        return left @ right.T
    return torch.from_numpy(left.numpy() @ right.numpy().T)  # on an AMD CPU 1.3 times as fast as torch's


def paired_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Inner product of each row of `left` (n, H) with the same row of `right` (n, H): (n,).

    >>> paired_products(torch.eye(2), torch.ones(2, 2))
    tensor([1., 1.])
    """
    if left.is_cuda:
        return (left * right).sum(1)
    return torch.from_numpy(np.vecdot(left.numpy(), right.numpy()))


def largest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest entry of each row of `scores` (n, k), the first of equals, and its column: (n,), (n,)."""
    if scores.is_cuda:
        best, where = scores.max(dim=1)
        return best, where
    where = torch.from_numpy(scores.numpy().argmax(1))  # ten times as fast as torch's
    return scores.gather(1, where[:, None])[:, 0], where


def some_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The given rows of a matrix, in ascending order: a view of it, not a copy, where they are consecutive."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return matrix[int(rows[0]) : int(rows[-1]) + 1]
    return matrix.index_select(0, rows)


def sums_by_cluster(
    vectors: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clusters that the points `rows` belong to, ascending, and the sum of each one's vectors: (C,), (C, H).

    Added in the order of the points, on a GPU too, where `index_add_` adds in any order.

    >>> sums_by_cluster(torch.eye(3), torch.tensor([4, 2, 4]), torch.arange(3))
    (tensor([2, 4]), tensor([[0., 1., 0.],
            [1., 0., 1.]]))
    """
    members = rows[torch.argsort(labels[rows], stable=True)]
    clusters, sizes = torch.unique_consecutive(labels[members], return_counts=True)
    return clusters, torch.nn.functional.embedding_bag(members, vectors, sizes.cumsum(0) - sizes, mode="sum")
