"""Compare our spherical k-means with faiss.Kmeans and with the HCE paper's Algorithm 2.

Freshet clusters passages into a tree, one level after the other from the bottom. Each level is
compared with faiss. If faiss is not installed, as on a GPU machine that only trains, each level is
compared with Algorithm 2. That algorithm compares all points with all centroids, as in the paper.
It is used only for this comparison.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from benchmarks.measurement import row, row_below, seconds
from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes

# Number of inner products that `nearest` computes at once. It limits the memory to 64 MiB.
BLOCK_SIZE = 2**24
# Goals of the ratios to the peer: the objective at every level, the speed against faiss, and the
# speed against the paper's Algorithm 2.
MIN_OBJECTIVE = 1.0
MIN_SPEED = 2.0
MIN_SPEED_AGAINST_PAPER = 1.0
# Number of passages that the option `large` clusters, and the most seconds for it on a GPU.
LARGE_SIZE = 1_000_000
MAX_LARGE_SECONDS = 60.0
# Arguments: vectors, clusters, iterations, seed. Returns centroids.
Cluster = Callable[[torch.Tensor, int, int, int], torch.Tensor]


def algorithm_2(vectors: torch.Tensor, clusters: int, iterations: int, seed: int) -> torch.Tensor:
    """Cluster unit vectors by the HCE paper's Algorithm 2.

    At first, points are assigned at random. The loop ends when no point moves, or after
    `iterations`. A cluster that loses its last point keeps its centroid. The paper does not define
    this case.

    Args:
        vectors: Unit vectors (N, H).
        clusters: Number of clusters, K.
        iterations: Largest number of iterations.
        seed: Seed of the first assignment.

    Returns:
        The centroids (K, H).
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(clusters, (len(vectors),), generator=generator).to(vectors.device)
    centroids = vectors.new_zeros(clusters, vectors.shape[1])
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).index_add_(0, labels, vectors)
        filled = torch.bincount(labels, minlength=clusters) > 0
        centroids = torch.where(filled[:, None], normalize(sums, dim=1), centroids)
        _, new_labels = nearest(vectors, centroids)
        if torch.equal(new_labels, labels):
            break
        labels = new_labels
    return centroids


def nearest(vectors: torch.Tensor, centroids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best cosine of each vector and the number of the centroid that has it.

    Args:
        vectors: Unit vectors (N, H).
        centroids: Unit vectors (K, H).

    Returns:
        Cosines (N,) and centroid numbers (N,).
    """
    cosines = []
    numbers = []
    for block in vectors.split(max(1, BLOCK_SIZE // len(centroids))):
        best = (block @ centroids.T).max(dim=1)
        cosines.append(best.values)
        numbers.append(best.indices)
    return torch.cat(cosines), torch.cat(numbers)


def rows(
    passages: int = 100_000,
    dimension: int = 384,
    branching: int | None = None,
    iterations: int = 25,
    repeats: int = 3,
    device: str = "cpu",
    seed: int = 0,
    paper: int = 10_000,
    large: bool = False,
) -> list[dict[str, Any]]:
    """Compare the mean cosine and the speed of each level, and the speed of all levels together.

    Speed is in vectors per second.

    Args:
        passages: Number of synthetic vectors.
        dimension: Numbers per vector.
        branching: Branching of the tree. None takes the default for this number of passages.
        iterations: Limit on the iterations of k-means.
        repeats: Runs per row, each with another seed.
        device: Device of both sides.
        seed: First seed.
        paper: Passages of the comparison with Algorithm 2; 0 leaves it out.
        large: Cluster a million passages once instead of `passages`.
    """
    if large:
        passages = LARGE_SIZE
        repeats = 1
    shared = {
        "dimension": dimension,
        "iterations": iterations,
        "repeats": repeats,
        "device": device,
        "seed": seed,
    }
    results = levels(passages, branching=branching, **shared)
    if paper:
        results.extend(against_paper(paper, **shared))
    return results


def levels(
    passages: int,
    dimension: int,
    branching: int | None,
    iterations: int,
    repeats: int,
    device: str,
    seed: int,
) -> list[dict[str, Any]]:
    """Cluster the same vectors with Freshet and with its peer, level by level.

    The lowest level clusters the passages. Each level above clusters the centroids that Freshet
    found for the level below. Both sides have the same limit on iterations, and stop earlier when
    no vector moves. The rows have the median time and the mean objective of `repeats` runs. The
    runs have different seeds, and the two sides alternate. The arguments are those of `rows`.
    """
    if branching is None:
        branching = default_branching(passages)
    ours = _our_cluster(device)
    peer, peer_name = _choose_peer(device)

    vectors = unit_vectors(synthetic_vectors(passages, dimension, seed), device)
    sizes = level_sizes(passages, branching)
    table = []
    our_total = 0.0
    peer_total = 0.0
    for number, clusters in reversed(list(enumerate(sizes, start=1))):
        result = _compare(ours, peer, vectors, clusters, iterations, range(seed, seed + repeats))
        our_total += result.our_seconds
        peer_total += result.peer_seconds

        label = f"level {number}, {len(vectors):,} x {dimension} into {clusters:,}"
        table.extend(result.rows(label, len(vectors), peer_name, MIN_SPEED))
        vectors = result.our_centroids

    label = f"all levels, b = {branching}, at most {iterations} iterations: vectors/s"
    table.append(row(label, passages / our_total, passages / peer_total, goal=MIN_SPEED))
    if device != "cpu" and passages == LARGE_SIZE:
        label = f"{passages:,} x {dimension}, all levels (s)"
        table.append(row_below(label, our_total, MAX_LARGE_SECONDS))
    return table


def _choose_peer(device: str) -> tuple[Cluster, str]:
    """Return the algorithm to compare with on a device, and its name.

    It is faiss if faiss is installed and can use the device, and the paper's algorithm otherwise.
    """
    if importlib.util.find_spec("faiss"):
        import faiss

        if device == "cpu":
            return partial(_faiss_cluster, gpu=False), "faiss"
        # faiss without GPU support has no such function.
        if hasattr(faiss, "get_num_gpus") and faiss.get_num_gpus() > 0:
            return partial(_faiss_cluster, gpu=True), "faiss on the GPU"
    return algorithm_2, "Algorithm 2"


def against_paper(
    passages: int, dimension: int, iterations: int, repeats: int, device: str, seed: int
) -> list[dict[str, Any]]:
    """Compare the paper's own algorithm with ours on the last level of the paper's tree.

    The arguments are those of `rows`.
    """
    vectors = unit_vectors(synthetic_vectors(passages, dimension, seed), device)
    clusters = level_sizes(passages, default_branching(passages))[-1]
    seeds = range(seed, seed + repeats)
    result = _compare(_our_cluster(device), algorithm_2, vectors, clusters, iterations, seeds)
    label = f"{passages:,} x {dimension} into {clusters:,}"
    return result.rows(label, passages, "the paper's Algorithm 2", MIN_SPEED_AGAINST_PAPER)


def synthetic_vectors(passages: int, dimension: int, seed: int) -> np.ndarray:
    """Return vectors (N, H) that resemble a sentence encoder's.

    They have topics within topics. The variance of direction i is proportional to 1 / i.

    Args:
        passages: Number of vectors, N.
        dimension: Numbers per vector, H.
        seed: Seed of the draws.
    """
    random = np.random.default_rng(seed)
    scale = np.arange(1, dimension + 1, dtype=np.float32) ** -0.5
    vectors = np.zeros((1, dimension), np.float32)
    for count in (max(2, passages // 1000), max(2, passages // 30), passages):
        parents = random.integers(0, len(vectors), count)
        noise = random.standard_normal((count, dimension), np.float32)
        vectors = vectors[parents] + scale * noise
    return vectors


@dataclass(frozen=True)
class _Comparison:
    """Median seconds and mean cosines of both sides, and our centroids (K, H) of the last run."""

    our_seconds: float
    peer_seconds: float
    our_cosine: float
    peer_cosine: float
    our_centroids: torch.Tensor

    def rows(
        self, label: str, vectors: int, peer_name: str, min_speed: float
    ) -> list[dict[str, Any]]:
        """Return the rows of the objective and of the speed for this number of vectors."""
        return [
            row(
                f"{label}: mean cosine, against {peer_name}",
                self.our_cosine,
                self.peer_cosine,
                goal=MIN_OBJECTIVE,
            ),
            row(
                f"{label}: vectors/s, the same",
                vectors / self.our_seconds,
                vectors / self.peer_seconds,
                goal=min_speed,
            ),
        ]


def _compare(
    ours: Cluster,
    peer: Cluster,
    vectors: torch.Tensor,
    clusters: int,
    iterations: int,
    seeds: range,
) -> _Comparison:
    """Cluster `vectors` with both sides in turn, once per seed.

    Args:
        ours: Our k-means.
        peer: The algorithm that it is compared with.
        vectors: Unit vectors (N, H).
        clusters: Number of clusters.
        iterations: Limit on the iterations.
        seeds: Seeds of the runs.
    """
    our_runs = []
    peer_runs = []
    for seed in seeds:
        our_runs.append(_time_cluster(ours, vectors, clusters, iterations, seed))
        peer_runs.append(_time_cluster(peer, vectors, clusters, iterations, seed))
    return _Comparison(
        our_seconds=float(np.median([run.seconds for run in our_runs])),
        peer_seconds=float(np.median([run.seconds for run in peer_runs])),
        our_cosine=float(np.mean([run.cosine for run in our_runs])),
        peer_cosine=float(np.mean([run.cosine for run in peer_runs])),
        our_centroids=our_runs[-1].centroids,
    )


class _Run(NamedTuple):
    """Seconds of one run, its mean cosine to the nearest centroid, and its centroids (K, H)."""

    seconds: float
    cosine: float
    centroids: torch.Tensor


def _time_cluster(
    cluster: Cluster, vectors: torch.Tensor, clusters: int, iterations: int, seed: int
) -> _Run:
    """Cluster once, and measure the seconds and the mean cosine of vectors to their centroids."""
    results = []

    def run() -> None:
        results.append(cluster(vectors, clusters, iterations, seed))

    run_seconds = seconds(run)
    (centroids,) = results
    cosines, _ = nearest(vectors, centroids)
    return _Run(run_seconds, float(cosines.mean(dtype=torch.float64)), centroids)


def _our_cluster(device: str) -> Cluster:
    """Return our k-means on a device, with the arguments of `Cluster`."""

    def cluster(vectors: torch.Tensor, clusters: int, iterations: int, seed: int) -> torch.Tensor:
        """Return the centroids (K, H) of `KMeans` for vectors (n, H), without gradients."""
        settings = HierarchySettings().replace(max_iterations=iterations, device=device)
        with torch.inference_mode():
            return KMeans(settings, seed).cluster(vectors, clusters).centroids

    return cluster


def _faiss_cluster(
    vectors: torch.Tensor, clusters: int, iterations: int, seed: int, gpu: bool
) -> torch.Tensor:
    """Cluster with faiss. As in ours, all vectors are used, and not a sample of them."""
    import faiss

    points = vectors.cpu().numpy()
    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=iterations,
        spherical=True,
        seed=seed,
        gpu=gpu,
        # Without these limits, faiss warns about few points and samples from many.
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    kmeans.train(points)
    return torch.from_numpy(kmeans.centroids).to(vectors.device)
