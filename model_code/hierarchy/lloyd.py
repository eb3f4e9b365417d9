"""Lloyd's iteration for spherical k-means (HCE, Algorithm 2), which skips most inner products.

Every assignment equals that of the plain iteration, which compares all points with all centroids.
For each point two values are stored: `score`, its cosine to its centroid, and `rival`, an upper
bound on its cosine to any other centroid. After an update of the centroids, each point is compared
with the centroids that moved. This also updates its score. Then there are two cases:

- score >= rival: no centroid that did not move can be nearer. After a few iterations only few
  centroids move, so this is fast.
- score < rival: the bound has failed. The point is compared with every centroid, which makes the
  bound exact again.

The bound is that of Hamerly ("Making k-means even faster", 2010). Hamerly estimates the effect of
moved centroids by the longest move, while here points are compared with them. Small clusters move
rarely but far, and a single long move would make every estimate useless.

This is our own code because it takes half the time of faiss.Kmeans for 100,000 vectors in 1,563
clusters (see benchmarks/README.md). Its result depends neither on the order of the points nor on
the size of blocks. So slices of the points can be compared on several machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn.functional import normalize

# Difference below which cosines count as equal. Float32 products of unit vectors are not more
# exact.
COSINE_TOLERANCE = 1e-6
# Share of moved centroids from which all points are compared with all centroids, because the bound
# then costs more than it saves.
MAX_MOVED_SHARE = 0.75
# Limits of points and of inner products that a CPU computes at a time, so that both stay in the
# cache: 12 MiB of vectors with 384 dimensions, and 4 MiB of products.
MAX_BLOCK_POINTS = 8192
MAX_BLOCK_PRODUCTS = 2**20
# Factor by which blocks are larger on a GPU, which small blocks would leave idle.
GPU_BLOCK_FACTOR = 256


class Lloyd:
    """The state of one run of k-means, over N points and K clusters.

    Attributes:
        vectors: Points, (N, H), of unit norm.
        centroids: Centroids, (K, H).
        moved: Whether the last update changed each centroid, (K,) bool.
        labels: Cluster of each point, (N,) int64. -1 for a point without a cluster.
        score: Cosine of each point to its centroid, (N,).
        rival: Upper bound on the cosine of each point to any other centroid, (N,). It is infinite
            if the bound has failed.
    """

    def __init__(self, vectors: torch.Tensor, clusters: int) -> None:
        """Prepare a run without centroids.

        Args:
            vectors: Unit vectors of the points, (N, H).
            clusters: Number of clusters K.
        """
        self.vectors = vectors
        self.centroids = vectors.new_zeros(clusters, vectors.shape[1])
        self.moved = torch.zeros(clusters, dtype=torch.bool, device=vectors.device)
        self.labels = torch.full((len(vectors),), -1, device=vectors.device)
        self.score = vectors.new_full((len(vectors),), -torch.inf)
        self.rival = self.score.clone()
        # Labels when the centroids were last averaged, to tell which clusters changed since.
        self._averaged_labels = self.labels.clone()

    @property
    def objective(self) -> float:
        """Sum of the points' cosines to their centroids, which k-means maximises."""
        return float(self.score.sum(dtype=torch.float64))

    def sizes(self) -> torch.Tensor:
        """Count the points of each cluster: (K,) int64."""
        return torch.bincount(self.labels, minlength=len(self.centroids))

    def add_centroids(self, clusters: torch.Tensor, centroids: torch.Tensor) -> None:
        """Set the centroids of clusters that have none, and move the points nearer to them.

        Args:
            clusters: Numbers of the clusters, (C,) int64.
            centroids: Unit vector of each of these clusters, (C, H).
        """
        self.centroids[clusters] = centroids
        is_added = torch.zeros_like(self.moved)
        is_added[clusters] = True
        every_point = torch.ones_like(self.labels, dtype=torch.bool)
        self.compare(every_point, is_added)

    def step(self) -> bool:
        """Assign the points, fill empty clusters and update the centroids.

        Returns:
            Whether any point changed its cluster.
        """
        self._assign()
        self._fill_empty_clusters()

        # A centroid moves if a point joined or left its cluster. Before the first update, points
        # have left the cluster -1, which does not exist.
        changed = torch.nonzero(self.labels != self._averaged_labels)[:, 0]
        joined = self.labels[changed]
        left = self._averaged_labels[changed]
        self.moved.zero_()
        self.moved[joined[joined >= 0]] = True
        self.moved[left[left >= 0]] = True

        self.update_centroids()
        return len(changed) > 0

    def update_centroids(self) -> None:
        """Set each centroid in `moved` to the normalised sum of its cluster's points.

        A centroid is kept if the sum is about 0, which has no direction.
        """
        members = torch.nonzero(self.moved[self.labels])[:, 0]
        clusters, sums = sums_by_cluster(self.vectors, self.labels, members)
        has_direction = sums.norm(dim=1, keepdim=True) > COSINE_TOLERANCE
        self.centroids[clusters] = torch.where(
            has_direction, normalize(sums, dim=1), self.centroids[clusters]
        )
        self._averaged_labels = self.labels.clone()

    def refresh_scores(self) -> None:
        """Compute each point's cosine to its centroid again, if the centroid moved."""
        members = torch.nonzero(self.moved[self.labels])[:, 0]
        for rows in members.split(self._block_limit(MAX_BLOCK_POINTS)):
            self.score[rows] = paired_products(
                select_rows(self.vectors, rows), self.centroids[self.labels[rows]]
            )

    def compare(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Move each point to the nearest of some centroids, if it is nearer than the point's own.

        Each point has a `score`, its cosine to its own centroid, and a bound `rival`, which no
        other centroid's cosine exceeds. The bound saves comparisons with the other centroids:

        - If score >= rival, none of them can be nearer. So the point moves to the nearest of the
          compared centroids, or stays if its own is at least as near.
        - If score < rival, one of them may be nearer. The point stays for now. Its `rival` is set
          to infinity, which tells the caller to compare it with all centroids.

        This updates `labels`, `score` and `rival`.

        Args:
            rows: Mask of the points to compare, (N,) bool.
            columns: Mask of the centroids to compare them with, (K,) bool.
        """
        points = torch.nonzero(rows)[:, 0]
        clusters = torch.nonzero(columns)[:, 0]
        if not len(points) or not len(clusters):
            return

        # Inner products are computed as a matrix with a column per compared centroid. For each of
        # the K clusters, this is the column of its centroid, or -1 if it is not compared.
        column_of_cluster = torch.where(columns, torch.cumsum(columns, 0) - 1, -1)
        # A point without a cluster has the label -1, which selects the last entry. So another -1 is
        # appended.
        column_of_cluster = torch.cat([column_of_cluster, column_of_cluster.new_tensor([-1])])

        centroids = select_rows(self.centroids, clusters)
        for block in _blocks(points, self._block_size(len(clusters))):
            self._compare_block(block, clusters, centroids, column_of_cluster)

    def _compare_block(
        self,
        block: slice | torch.Tensor,
        clusters: torch.Tensor,
        centroids: torch.Tensor,
        column_of_cluster: torch.Tensor,
    ) -> None:
        """Compare a block of points with the centroids of some clusters; see `compare`.

        Args:
            block: Numbers of b points, ascending.
            clusters: Numbers of the clusters, (C,).
            centroids: Their centroids, (C, H).
            column_of_cluster: Position of each of the K clusters in `clusters`, or -1 if it is not
                among them. A further entry of -1 is for points without a cluster, (K + 1,).
        """
        labels = self.labels[block]
        score = self.score[block]
        rival = self.rival[block]
        products = inner_products(self.vectors[block], centroids)

        # If a point's own centroid is compared, the product with it is the point's new score. It is
        # then hidden, so that the maximum below is over other centroids.
        column = column_of_cluster[labels]
        with_own = torch.nonzero(column >= 0)[:, 0]
        own_cells = (with_own, column[with_own])
        score[with_own] = products[own_cells]
        products[own_cells] = -torch.inf

        # The bound of a point fails if a centroid that is not compared may be nearer.
        best, best_column = row_maxima(products)
        has_failed = score < rival
        rival = torch.maximum(best, rival).masked_fill(has_failed, torch.inf)

        is_nearer = best > score + COSINE_TOLERANCE
        moving = torch.nonzero(is_nearer & ~has_failed)[:, 0]
        labels[moving] = clusters[best_column[moving]]
        score[moving] = best[moving]

        self.labels[block] = labels
        self.score[block] = score
        self.rival[block] = rival

    def _assign(self) -> None:
        """Assign every point to its nearest centroid.

        A point keeps its centroid if another is only as near.
        """
        to_compare = torch.ones_like(self.labels, dtype=torch.bool)
        few_moved = self.moved.sum() < MAX_MOVED_SHARE * len(self.moved)
        if few_moved:
            # First compare with the moved centroids only. Then the points whose bound failed are
            # compared with all centroids.
            self.compare(to_compare, self.moved)
            to_compare = torch.isposinf(self.rival)

        # A comparison with all centroids gives a new bound, so the old one must not count.
        every_centroid = torch.ones_like(self.moved)
        self.rival[to_compare] = -torch.inf
        self.compare(to_compare, every_centroid)

    def _fill_empty_clusters(self) -> None:
        """Move points that are far from their centroids into empty clusters, one into each.

        The point nearest to each centroid does not move, so that no cluster becomes empty. A point
        that equals its centroid does not move either. So clusters stay empty if there are fewer
        distinct points than clusters.
        """
        empty = torch.nonzero(self.sizes() == 0)[:, 0]
        if not len(empty):
            return

        # Order the points by cluster, and within a cluster by descending cosine to the centroid.
        order = torch.argsort(self.score, descending=True, stable=True)
        order = order[torch.argsort(self.labels[order], stable=True)]
        is_nearest = torch.ones_like(order, dtype=torch.bool)
        is_nearest[1:] = torch.diff(self.labels[order]) > 0

        may_leave = self.score < 1 - COSINE_TOLERANCE
        may_leave[order[is_nearest]] = False
        candidates = torch.nonzero(may_leave)[:, 0]
        by_distance = candidates[torch.argsort(self.score[candidates], stable=True)]
        farthest = by_distance[: len(empty)]
        self.labels[farthest] = empty[: len(farthest)]
        self.rival[farthest] = torch.inf

    def _block_size(self, centroid_count: int) -> int:
        """Return how many points are compared with this number of centroids at a time, at least 1.

        Both the vectors of the points and their products with the centroids should fit into the
        cache.
        """
        max_points_by_products = self._block_limit(MAX_BLOCK_PRODUCTS) // centroid_count
        return min(self._block_limit(MAX_BLOCK_POINTS), max(1, max_points_by_products))

    def _block_limit(self, cpu_limit: int) -> int:
        """Return a limit of points or products for the device of the points.

        A GPU gets larger blocks, because small ones would leave it idle.

        Args:
            cpu_limit: The limit on a CPU.
        """
        if self.vectors.is_cuda:
            return cpu_limit * GPU_BLOCK_FACTOR
        return cpu_limit


MakeLloyd = Callable[[torch.Tensor, int], Lloyd]
"""A function that creates a `Lloyd` from vectors (N, H) and a number of clusters."""


def _blocks(rows: torch.Tensor, size: int) -> Iterator[slice | torch.Tensor]:
    """Split ascending row numbers into blocks.

    If all rows are consecutive, the blocks are slices, which need no copy of the vectors.
    """
    first = int(rows[0])
    end = int(rows[-1]) + 1
    is_consecutive = end - first == len(rows)
    if not is_consecutive:
        yield from rows.split(size)
        return
    for start in range(first, end, size):
        yield slice(start, min(start + size, end))


def inner_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return all inner products of the rows of `left` (n, H) and `right` (k, H): (n, k)."""
    if left.is_cuda:
        return left @ right.T
    # On an AMD CPU, numpy's product is 1.3 times as fast as torch's.
    return torch.from_numpy(left.numpy() @ right.numpy().T)


def paired_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the inner product of each row of `left` (n, H) with the same row of `right`: (n,).

    >>> paired_products(torch.eye(2), torch.ones(2, 2))
    tensor([1., 1.])
    """
    if left.is_cuda:
        return (left * right).sum(1)
    return torch.from_numpy(np.vecdot(left.numpy(), right.numpy()))


def row_maxima(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest entry of each row of `scores` (n, k) and its column: (n,) and (n,).

    On a CPU, it is the first column if several entries are equal.
    """
    if scores.is_cuda:
        best, columns = scores.max(dim=1)
        return best, columns
    # numpy's argmax is ten times as fast as torch's.
    columns = torch.from_numpy(scores.numpy().argmax(1))
    return scores.gather(1, columns[:, None])[:, 0], columns


def select_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of a matrix with the given ascending numbers.

    Consecutive rows are returned as a view, other rows as a copy.
    """
    if len(rows):
        first = int(rows[0])
        end = int(rows[-1]) + 1
        if end - first == len(rows):
            return matrix[first:end]
    return matrix.index_select(0, rows)


def sums_by_cluster(
    vectors: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the vectors of the given points by cluster.

    The points of a cluster are added in their order, so that the sum is reproducible. `index_add_`
    would add them in any order on a GPU.

    Args:
        vectors: Vectors of all points, (N, H).
        labels: Cluster of each point, (N,) int64.
        rows: Numbers of the points to add, (n,) int64.

    Returns:
        The clusters of these points, ascending, (C,), and the sum of each cluster, (C, H).

    >>> sums_by_cluster(torch.eye(3), torch.tensor([4, 2, 4]), torch.arange(3))
    (tensor([2, 4]), tensor([[0., 1., 0.],
            [1., 0., 1.]]))
    """
    # Order the points by cluster, and find the first point of each cluster.
    members = rows[torch.argsort(labels[rows], stable=True)]
    clusters, sizes = torch.unique_consecutive(labels[members], return_counts=True)
    starts = sizes.cumsum(0) - sizes
    sums = torch.nn.functional.embedding_bag(members, vectors, starts, mode="sum")
    return clusters, sums
