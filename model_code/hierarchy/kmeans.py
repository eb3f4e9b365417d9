"""Spherical k-means (HCE, Algorithm 2; Dhillon and Modha, 2001)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.progress import Progress, no_progress

SMALL = 100_000  # points times clusters up to which a run takes tens of milliseconds
# of a small run; one start of few clusters is a draw of luck, and the best of four is .3 to .9 %
# better
STARTS = 4
APART = 1_000_003  # between the seeds of two starts
ROUNDS = 8  # of k-means++; 16 and 32 gave no better objective on 1,500 to 12,000 sentence vectors


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters without empty ones: the outcome of k-means."""

    centroids: torch.Tensor  # (K, H), unit norm
    labels: torch.Tensor  # (N,) int64: each point's cluster
    objective: float  # sum of the points' cosines to their centroids


@dataclass(frozen=True)
class KMeans:
    """How points are clustered. make_lloyd: the engine that compares them with centroids, `Lloyd`
    in this process.
    """

    settings: HierarchySettings
    seed: int
    progress: Progress = no_progress
    make_lloyd: MakeLloyd = Lloyd

    def divide(self, vectors: torch.Tensor, clusters: int) -> Clustering:
        """Divide unit vectors (N, H) into at most `clusters` clusters: fewer where there are fewer
        distinct vectors.

        The best of `STARTS` by the objective where N times `clusters` is at most `SMALL`, else one.

        >>> KMeans(HierarchySettings(), seed=0).divide(torch.eye(4)[[0, 0, 1, 2, 2]], 4).objective
        5.0
        """
        count = min(clusters, len(vectors))
        others = range(1, STARTS if len(vectors) * count <= SMALL else 1)
        starts = [
            self,
            *(replace(self, seed=self.seed + APART * i, progress=no_progress) for i in others),
        ]
        runs = (start._cluster(vectors, count) for start in starts)
        return max(runs, key=lambda clustering: clustering.objective)

    def _cluster(self, vectors: torch.Tensor, count: int) -> Clustering:
        run = self.make_lloyd(vectors, count)
        initialise(run, self.seed)
        self._iterate(run)
        occupied = run.sizes() > 0
        labels = (torch.cumsum(occupied, 0) - 1)[run.labels]
        return Clustering(run.centroids[occupied], labels, run.objective)

    def _iterate(self, run: Lloyd) -> None:
        """Step until no point moves, rounding lowers the objective, or the cap."""
        objective, most = -math.inf, self.settings.max_iterations
        for iteration in range(1, most + 1):
            going = run.step()
            self.progress(iteration, most, "k-means iterations")
            previous, objective = objective, run.objective
            if not going or objective < previous:
                break
        run.refresh()


def initialise(run: Lloyd, seed: int) -> None:
    """Take distinct points, rather far-off ones, as the centroids of `run`, and give every point a
    cluster.

    k-means++ (Arthur and Vassilvitskii, 2007) draws one point after the other, each with a
    probability in proportion to its squared distance to the nearest one drawn before, 2 - 2 cos for
    unit vectors. Here each of `ROUNDS` draws its share of them at once, as k-means|| does (Bahmani
    et al., 2012), so that all rounds together cost no more than one assignment of the points, and
    are one. Random numbers are drawn on the CPU: equal seeds start equally anywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    count, drawn = len(run.centroids), 0
    rounds = min(ROUNDS, count)
    weights = torch.ones_like(run.score)
    for done in range(1, rounds + 1):
        quota = -(-count * done // rounds) - drawn
        points = _sample(weights, quota, generator)
        run.place(torch.arange(drawn, drawn + quota, device=points.device), run.vectors[points])
        drawn += quota
        weights = torch.where(weights > 0, (1 - run.score).clamp(min=1e-9), 0.0)
        weights[points] = 0


def _sample(weights: torch.Tensor, quota: int, generator: torch.Generator) -> torch.Tensor:
    """The numbers of `quota` points that are drawn without replacement, by weight.

    The smallest of exponential variables with rates w_i is the i-th with probability w_i / sum w.
    """
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64).to(weights.device)
    return torch.argsort(-torch.log1p(-uniform) / weights)[:quota]
