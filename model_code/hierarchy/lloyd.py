"""Lloyd's iteration for spherical k-means (HCE, Algorithm 2): the same assignments with few of the
inner products.

Each point keeps its cosine s to its own centroid and a bound u on its cosine to any rival, as of
the last look at each. After an update of the centroids, each point is compared with those that
moved, which also gives s anew, and
    s >= u: only these can win the point, and after a few iterations they are few;
    s <  u: the point is compared with every centroid, which makes u exact.
This is Hamerly's bound ("Making k-means even faster", 2010) with moved rivals looked at instead of
estimated: small clusters move seldom but far, and then one distant move would spoil every point's
estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn.functional import normalize

# cosines closer than this are equal: float32 inner products of unit vectors are no more exact
ROUNDING = 1e-6
MANY = 0.75  # when more centroids than this share moved, the bound saves less than it costs
# largest number of points and of inner products in a block: 12 MiB and 4 MiB, in cache
POINTS, SCORES = 8192, 2**20
GPU_FACTOR = 256  # larger blocks on a GPU, which many small ones would leave idle


class Lloyd:
    """The state of one run of k-means.

    Per cluster (K): `centroids` (K, H), and whether it `moved` in the last update. Per point (N):
    its cluster `labels` (-1: none yet), its cosine `score` to that centroid, and the bound `rival`.
    """

    def __init__(self, vectors: torch.Tensor, clusters: int) -> None:
        """Hold unit `vectors` (N, H), to be divided into `clusters` K."""
        self.vectors = vectors
        self.centroids = vectors.new_zeros(clusters, vectors.shape[1])
        self.moved = torch.zeros(clusters, dtype=torch.bool, device=vectors.device)
        self.labels = torch.full((len(vectors),), -1, device=vectors.device)
        self.updated = self.labels.clone()  # the labels that the centroids are the means of
        self.score = vectors.new_full((len(vectors),), -torch.inf)
        self.rival = self.score.clone()

    @property
    def objective(self) -> float:
        """Sum of the points' cosines to their centroids, the quantity that k-means maximises."""
        return float(self.score.sum(dtype=torch.float64))

    def sizes(self) -> torch.Tensor:
        """Points per cluster: (K,) int64."""
        return torch.bincount(self.labels, minlength=len(self.centroids))

    def place(self, clusters: torch.Tensor, centroids: torch.Tensor) -> None:
        """Set the centroids of some clusters that have none yet, and let them win the points nearer
        to them.
        """
        self.centroids[clusters] = centroids
        columns = torch.zeros_like(self.moved)
        columns[clusters] = True
        self._compare(torch.ones_like(self.labels, dtype=torch.bool), columns)

    def step(self) -> bool:
        """Assign the points, fill empty clusters, update the centroids; return False if no point
        moved.
        """
        self._assign()
        self._fill()
        changed = torch.nonzero(self.labels != self.updated)[:, 0]
        self.moved.zero_()
        for labels in (self.labels[changed], self.updated[changed]):
            self.moved[labels[labels >= 0]] = True
        self.update()
        return len(changed) > 0

    def update(self) -> None:
        """Set each centroid that moves to the normalised sum of its members; opposite members leave
        it where it is.
        """
        members = torch.nonzero(self.moved[self.labels])[:, 0]
        clusters, sums = sums_by_cluster(self.vectors, self.labels, members)
        has_direction = sums.norm(dim=1, keepdim=True) > ROUNDING
        self.centroids[clusters] = torch.where(
            has_direction, normalize(sums, dim=1), self.centroids[clusters]
        )
        self.updated = self.labels.clone()

    def refresh(self) -> None:
        """Compute `score` again for the members of the centroids that moved."""
        for rows in torch.nonzero(self.moved[self.labels])[:, 0].split(self._room(POINTS)):
            self.score[rows] = paired_products(
                some_rows(self.vectors, rows), self.centroids[self.labels[rows]]
            )

    def _assign(self) -> None:
        """Move every point to its nearest centroid; among equally near ones it stays."""
        lost = torch.ones_like(self.labels, dtype=torch.bool)
        if self.moved.sum() < MANY * len(self.moved):
            self._compare(lost, self.moved)
            lost = torch.isposinf(self.rival)
        self.rival[lost] = -torch.inf
        self._compare(lost, torch.ones_like(self.moved))

    def _fill(self) -> None:
        """Give each empty cluster the point that is farthest from its centroid.

        The nearest member of each cluster stays, so none is emptied, and so does a point that lies
        on its centroid: where there are fewer distinct points than clusters, empty ones are kept.
        """
        empty = torch.nonzero(self.sizes() == 0)[:, 0]
        if not len(empty):
            return
        order = torch.argsort(self.score, descending=True, stable=True)
        order = order[torch.argsort(self.labels[order], stable=True)]
        nearest = torch.ones_like(order, dtype=torch.bool)
        nearest[1:] = torch.diff(self.labels[order]) > 0
        free = self.score < 1 - ROUNDING
        free[order[nearest]] = False
        candidates = torch.nonzero(free)[:, 0]
        farthest = candidates[torch.argsort(self.score[candidates], stable=True)][: len(empty)]
        self.labels[farthest] = empty[: len(farthest)]
        self.rival[farthest] = torch.inf

    def _compare(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Compare the points in the mask `rows` (N,) with the centroids in the mask `columns` (K,).

        Changes labels, scores and rivals alone. A point whose bound fails stays, and its `rival`
        becomes infinite.
        """
        # of a centroid among the columns
        position = torch.where(columns, torch.cumsum(columns, 0) - 1, -1)
        # the label of a point without a cluster is -1
        position = torch.cat([position, position.new_tensor([-1])])
        points, rivals = torch.nonzero(rows)[:, 0], torch.nonzero(columns)[:, 0]
        if not len(points) or not len(rivals):
            return
        centroids = some_rows(self.centroids, rivals)
        for some in _blocks(
            points, min(self._room(POINTS), max(1, self._room(SCORES) // len(rivals)))
        ):
            self._compare_block(some, rivals, centroids, position)

    def _compare_block(
        self,
        some: slice | torch.Tensor,
        rivals: torch.Tensor,
        centroids: torch.Tensor,
        position: torch.Tensor,
    ) -> None:
        labels, score, rival = self.labels[some], self.score[some], self.rival[some]
        scores = inner_products(self.vectors[some], centroids)
        column = position[labels]
        here = torch.nonzero(column >= 0)[:, 0]
        cells = here, column[here]
        score[here] = scores[cells]
        scores[cells] = -torch.inf
        best, where = largest(scores)
        lost = score < rival
        rival = torch.maximum(best, rival).masked_fill(lost, torch.inf)
        won = torch.nonzero((best > score + ROUNDING) & ~lost)[:, 0]
        labels[won], score[won] = rivals[where[won]], best[won]
        self.labels[some], self.score[some], self.rival[some] = labels, score, rival

    def _room(self, size: int) -> int:
        return size * GPU_FACTOR if self.vectors.is_cuda else size


MakeLloyd = Callable[[torch.Tensor, int], Lloyd]  # (vectors, clusters), as `Lloyd` takes


def _blocks(rows: torch.Tensor, size: int) -> Iterator[slice | torch.Tensor]:
    """Ascending `rows` in blocks of at most `size`; consecutive ones as slices, which spares a
    copy.
    """
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 != len(rows):
        yield from rows.split(size)
    else:
        yield from (
            slice(start, min(start + size, last + 1)) for start in range(first, last + 1, size)
        )


def inner_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """All inner products of the rows of `left` (n, H) and `right` (k, H): (n, k)."""
    if left.is_cuda:
        return left @ right.T
    # on an AMD CPU 1.3 times as fast as torch's
    return torch.from_numpy(left.numpy() @ right.numpy().T)


def paired_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Inner product of each row of `left` (n, H) with the same row of `right` (n, H): (n,).

    >>> paired_products(torch.eye(2), torch.ones(2, 2))
    tensor([1., 1.])
    """
    if left.is_cuda:
        return (left * right).sum(1)
    return torch.from_numpy(np.vecdot(left.numpy(), right.numpy()))


def largest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest entry of each row of `scores` (n, k), the first of equals, and its column: (n,),
    (n,).
    """
    if scores.is_cuda:
        best, where = scores.max(dim=1)
        return best, where
    where = torch.from_numpy(scores.numpy().argmax(1))  # ten times as fast as torch's
    return scores.gather(1, where[:, None])[:, 0], where


def some_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The given rows of a matrix, in ascending order: a view of it, not a copy, where they are
    consecutive.
    """
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return matrix[int(rows[0]) : int(rows[-1]) + 1]
    return matrix.index_select(0, rows)


def sums_by_cluster(
    vectors: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clusters that the points `rows` belong to, ascending, and the sum of each one's vectors:
    (C,), (C, H).

    Added in the order of the points, on a GPU too, where `index_add_` adds in any order.

    >>> sums_by_cluster(torch.eye(3), torch.tensor([4, 2, 4]), torch.arange(3))
    (tensor([2, 4]), tensor([[0., 1., 0.],
            [1., 0., 1.]]))
    """
    members = rows[torch.argsort(labels[rows], stable=True)]
    clusters, sizes = torch.unique_consecutive(labels[members], return_counts=True)
    return clusters, torch.nn.functional.embedding_bag(
        members, vectors, sizes.cumsum(0) - sizes, mode="sum"
    )
