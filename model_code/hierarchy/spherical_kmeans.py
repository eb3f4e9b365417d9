"""Spherical k-means (HCE, Algorithm 2; Dhillon and Modha, 2001), flat or within the groups of a tree's level."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from model_code.hierarchy.initialisation import initialise
from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.progress import Progress, silent

SMALL = 100_000  # points times clusters up to which a run takes tens of milliseconds
STARTS = 4  # of a small run; one start of few clusters is a draw of luck, and the best of four is .3 to .9 % better
APART = 1_000_003  # between the seeds of two starts


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters without empty ones: the outcome of k-means."""

    centroids: torch.Tensor  # (K, H), unit norm
    groups: torch.Tensor  # (K,) int64, ascending: the group whose points a cluster divides
    labels: torch.Tensor  # (N,) int64: each point's cluster
    objective: float  # sum of the points' cosines to their centroids
    iterations: int  # until no point moved, or the cap


def spherical_kmeans(
    vectors: torch.Tensor,
    clusters: int,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> Clustering:
    """Divide unit vectors (N, H) into at most `clusters` clusters: fewer where there are fewer distinct vectors.

    The best of `STARTS` by the objective where N times `clusters` is at most `SMALL`, else one.
    make_lloyd: the engine that compares points with centroids, `Lloyd` in this process.

    >>> vectors = torch.eye(4)[[0, 0, 1, 2, 2]]
    >>> spherical_kmeans(vectors, 4, HierarchySettings(), seed=0).objective
    5.0
    """
    groups = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    counts = groups.new_tensor([min(clusters, len(vectors))])
    starts = STARTS if len(vectors) * int(counts) <= SMALL else 1
    shown = [progress, *[silent] * (starts - 1)]
    found = (_cluster(vectors, groups, counts, settings, seed + APART * i, shown[i], make_lloyd) for i in range(starts))
    return max(found, key=lambda clustering: clustering.objective)


def split_groups(
    vectors: torch.Tensor,
    groups: torch.Tensor,
    counts: torch.Tensor,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> Clustering:
    """Divide the points of each group g, one of `groups` (N,), into at most `counts[g]` clusters, all at once."""
    order = torch.argsort(groups, stable=True)
    counts = torch.minimum(counts, torch.bincount(groups, minlength=len(counts)))
    sorted_ = _cluster(vectors[order], groups[order], counts, settings, seed, progress, make_lloyd)
    labels = torch.empty_like(order)
    labels[order] = sorted_.labels
    return replace(sorted_, labels=labels)


def _cluster(
    vectors: torch.Tensor,
    groups: torch.Tensor,
    counts: torch.Tensor,
    settings: HierarchySettings,
    seed: int,
    progress: Progress,
    make_lloyd: MakeLloyd,
) -> Clustering:
    """`split_groups` for `groups` that ascend, of which none has fewer points than `counts` asks for clusters."""
    run = make_lloyd(vectors, groups, counts)
    initialise(run, settings.initialisation, seed)
    iterations = _iterate(run, settings, progress)
    kept = run.sizes() > 0
    labels = (torch.cumsum(kept, 0) - 1)[run.labels]
    return Clustering(run.centroids[kept], run.group_of[kept], labels, run.objective, iterations)


def _iterate(run: Lloyd, settings: HierarchySettings, progress: Progress) -> int:
    """Step until no point moves, the objective hardly grows, or the cap; return the number of steps."""
    objective = 0.0
    for iteration in range(1, settings.max_iterations + 1):
        going = run.step()
        progress(iteration, settings.max_iterations, "k-means iterations")
        previous, objective = objective, run.objective
        if not going or (iteration > 1 and objective - previous < settings.tolerance * objective):
            break
    run.refresh()
    return iteration
