"""Compare our spherical k-means with faiss.Kmeans and with the HCE paper's Algorithm 2.

The comparison with faiss covers each level of a bottom-up tree. If faiss is not installed, as on a
GPU machine that only trains, Algorithm 2 is the peer of the levels too. It is implemented as the
paper prints it, all points against all centroids, and serves only as a peer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from benchmarks.measurement import row, row_below, seconds
from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes

# Inner products computed at once.
BLOCK = 2**24


def algorithm_2(vectors: torch.Tensor, clusters: int, iterations: int, seed: int) -> torch.Tensor:
    """Return the centroids (K, H) of unit `vectors` (N, H), found by the paper's Algorithm 2.

    Points are assigned at random at first. The loop ends when no point moves or after `iterations`.
    A cluster that loses its last point keeps its centroid; the paper does not define this case.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(clusters, (len(vectors),), generator=generator).to(vectors.device)
    centroids = vectors.new_zeros(clusters, vectors.shape[1])
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).index_add_(0, labels, vectors)
        filled = torch.bincount(labels, minlength=clusters) > 0
        centroids = torch.where(filled[:, None], normalize(sums, dim=1), centroids)
        before, labels = labels, nearest(vectors, centroids)[1]
        if torch.equal(before, labels):
            break
    return centroids


def nearest(vectors: torch.Tensor, centroids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best cosine of each vector and the number of the centroid that has it.

    Args:
        vectors: Unit vectors (N, H).
        centroids: Unit vectors (K, H).

    Returns:
        Cosines (N,) and centroid numbers (N,).
    """
    parts = [
        (part @ centroids.T).max(dim=1) for part in vectors.split(max(1, BLOCK // len(centroids)))
    ]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


# Goals of the ratios to the peer.
NO_WORSE, FASTER, AS_FAST = 1.0, 2.0, 1.0
LARGE, LARGE_SECONDS = 1_000_000, 60.0
# Arguments: vectors, clusters, iterations, seed. Returns centroids.
Cluster = Callable[[torch.Tensor, int, int, int], torch.Tensor]


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
        iterations: Limit on the iterations of k-means.
        repeats: Runs per row, each with another seed.
        device: Device of both sides.
        seed: First seed.
        branching: Branching of the tree. None takes the default for this number of passages.
        paper: Passages of the comparison with Algorithm 2; 0 leaves it out.
        large: Cluster a million passages once instead of `passages`.
    """
    if large:
        passages, repeats = LARGE, 1
    shared = {
        "dimension": dimension,
        "iterations": iterations,
        "repeats": repeats,
        "device": device,
        "seed": seed,
    }
    found = levels(passages, branching=branching, **shared)
    return found + (against_paper(paper, **shared) if paper else [])


def levels(
    passages: int,
    dimension: int,
    branching: int | None,
    iterations: int,
    repeats: int,
    device: str,
    seed: int,
) -> list[dict[str, Any]]:
    """Cluster the same vectors with both sides, level by level.

    At upper levels the vectors are the centroids of our level below. Both sides have the same limit
    on iterations and may stop earlier, when nothing moves. The rows have the median time and the
    mean objective of `repeats` runs. The runs have different seeds, and the two sides alternate.
    """
    branching = branching or default_branching(passages)
    peer, name = _peer(device)
    ours = _ours(device)
    level = unit_vectors(synthetic_vectors(passages, dimension, seed), device)
    sizes = level_sizes(passages, branching)
    table, spent = [], np.zeros(2)
    for number, clusters in reversed(list(enumerate(sizes, start=1))):
        pair = [_measured(one, level, clusters, iterations) for one in (ours, peer)]
        spans, cosines, centroids = _alternate(pair, range(seed, seed + repeats))
        what = f"level {number}, {len(level):,} x {dimension} into {clusters:,}"
        table.append(row(f"{what}: mean cosine, against {name}", *cosines, goal=NO_WORSE))
        table.append(
            row(f"{what}: vectors/s, the same", *(len(level) / span for span in spans), goal=FASTER)
        )
        spent += spans
        level = centroids
    what = f"all levels, b = {branching}, at most {iterations} iterations: vectors/s"
    table.append(row(what, *(float(passages / span) for span in spent), goal=FASTER))
    if device != "cpu" and passages == LARGE:
        table.append(
            row_below(f"{passages:,} x {dimension}, all levels (s)", float(spent[0]), LARGE_SECONDS)
        )
    return table


def _peer(device: str) -> tuple[Cluster, str]:
    """Return the peer for this device and its name.

    It is faiss if faiss is installed and can use the device, else the paper's algorithm.
    """
    if importlib.util.find_spec("faiss"):
        import faiss

        if device == "cpu":
            return partial(_faiss, gpu=False), "faiss"
        if getattr(faiss, "get_num_gpus", lambda: 0)():
            return partial(_faiss, gpu=True), "faiss on the GPU"
    return algorithm_2, "Algorithm 2"


def against_paper(
    passages: int, dimension: int, iterations: int, repeats: int, device: str, seed: int
) -> list[dict[str, Any]]:
    """Compare the paper's own algorithm with ours on the last level of the paper's tree."""
    vectors = unit_vectors(synthetic_vectors(passages, dimension, seed), device)
    clusters = level_sizes(passages, default_branching(passages))[-1]
    pair = [_measured(one, vectors, clusters, iterations) for one in (_ours(device), algorithm_2)]
    spans, cosines, _ = _alternate(pair, range(seed, seed + repeats))
    what = f"{passages:,} x {dimension} into {clusters:,}"
    return [
        row(f"{what}: mean cosine, against the paper's Algorithm 2", *cosines, goal=NO_WORSE),
        row(f"{what}: vectors/s, the same", *(passages / span for span in spans), goal=AS_FAST),
    ]


def synthetic_vectors(passages: int, dimension: int, seed: int) -> np.ndarray:
    """Return vectors (N, H) that resemble a sentence encoder's.

    They have topics within topics, and the variance of direction i falls like 1 / i.
    """
    draw = np.random.default_rng(seed)
    scale = np.arange(1, dimension + 1, dtype=np.float32) ** -0.5
    vectors = np.zeros((1, dimension), np.float32)
    for count in (max(2, passages // 1000), max(2, passages // 30), passages):
        parents = draw.integers(0, len(vectors), count)
        vectors = vectors[parents] + scale * draw.standard_normal((count, dimension), np.float32)
    return vectors


# Takes a seed and returns seconds, mean cosine and centroids.
Measured = Callable[[int], tuple[float, float, torch.Tensor]]


def _measured(cluster: Cluster, vectors: torch.Tensor, clusters: int, iterations: int) -> Measured:
    def run(seed: int) -> tuple[float, float, torch.Tensor]:
        """Return the seconds, the mean cosine to the nearest centroid, and the centroids (K, H)."""
        found = []
        spent = seconds(lambda: found.append(cluster(vectors, clusters, iterations, seed)))
        return spent, float(nearest(vectors, found[0])[0].mean(dtype=torch.float64)), found[0]

    return run


def _alternate(pair: list[Measured], seeds: range) -> tuple[np.ndarray, list[float], torch.Tensor]:
    """Return the median seconds (2,) and mean objectives of both sides, and our last centroids."""
    runs = [[run(seed) for run in pair] for seed in seeds]
    spans = np.array([[one[0] for one in both] for both in runs])
    cosines = np.array([[one[1] for one in both] for both in runs])
    return np.median(spans, axis=0), cosines.mean(axis=0).tolist(), runs[-1][0][2]


def _ours(device: str) -> Cluster:
    def cluster(vectors: torch.Tensor, clusters: int, iterations: int, seed: int) -> torch.Tensor:
        """Return the centroids (K, H) of `KMeans` for vectors (n, H), without gradients."""
        settings = HierarchySettings().replace(max_iterations=iterations, device=device)
        with torch.inference_mode():
            return KMeans(settings, seed).cluster(vectors, clusters).centroids

    return cluster


def _faiss(
    vectors: torch.Tensor, clusters: int, iterations: int, seed: int, gpu: bool
) -> torch.Tensor:
    """Cluster with faiss, with every vector in use as in ours."""
    import faiss

    points = vectors.cpu().numpy()
    every_point = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    options = {"niter": iterations, "spherical": True, "seed": seed, "gpu": gpu} | every_point
    kmeans = faiss.Kmeans(points.shape[1], clusters, **options)
    kmeans.train(points)
    return torch.from_numpy(kmeans.centroids).to(vectors.device)
