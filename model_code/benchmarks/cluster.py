"""Our spherical k-means against faiss.Kmeans, level by level of a bottom-up tree, on the same vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from model_code.benchmarks.measuring import row
from model_code.hierarchy.build import unit_vectors
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.shape import default_branching, level_sizes
from model_code.hierarchy.spherical_kmeans import spherical_kmeans
from model_code.progress import Progress, silent

NO_WORSE, FASTER = 1.0, 2.0  # the goals


def rows(
    passages: int = 10_000,
    dimension: int = 384,
    branching: int | None = 16,
    iterations: int = 25,
    repeats: int = 3,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Per level the mean cosine and the speed, in vectors per second, and the speed of all levels together.

    Both cluster the same vectors, which at upper levels are the centroids of our level below, with the same cap on
    iterations; both may end earlier, when nothing moves any more. Of `repeats` runs, each with another seed and ours
    and the peer's in turn, the fastest and the mean objective count. faiss is told to use every vector, as we do.
    """
    branching = branching or default_branching(passages)
    settings = replace(HierarchySettings(), max_iterations=iterations, device=device)
    level = unit_vectors(synthetic_vectors(passages, dimension, seed), device)
    sizes = level_sizes(passages, branching)
    table, spent = [], np.zeros(2)
    for number, clusters in reversed(list(enumerate(sizes, start=1))):
        ours, peer, centroids = _compete(level, clusters, settings, range(seed, seed + repeats))
        what = f"level {number}, {len(level):,} x {dimension} into {clusters:,}"
        table.append(row(f"{what}: mean cosine", ours[1], peer[1], goal=NO_WORSE))
        table.append(row(f"{what}: vectors/s", len(level) / ours[0], len(level) / peer[0], goal=FASTER))
        spent += [ours[0], peer[0]]
        level = centroids
        progress(len(sizes) - number + 1, len(sizes), "levels")
    what = f"all levels, b = {branching}, at most {iterations} iterations: vectors/s"
    return [*table, row(what, *(float(passages / seconds) for seconds in spent), goal=FASTER)]


def synthetic_vectors(passages: int, dimension: int, seed: int) -> np.ndarray:
    """Vectors (N, H) like a sentence encoder's: topics within topics, and a spectrum that falls like 1 / rank."""
    draw = np.random.default_rng(seed)
    scale = np.arange(1, dimension + 1, dtype=np.float32) ** -0.5
    vectors = np.zeros((1, dimension), np.float32)
    for count in (max(2, passages // 1000), max(2, passages // 30), passages):
        parents = draw.integers(0, len(vectors), count)
        vectors = vectors[parents] + scale * draw.standard_normal((count, dimension), np.float32)
    return vectors


def _compete(
    vectors: torch.Tensor, clusters: int, settings: HierarchySettings, seeds: range
) -> tuple[tuple[float, float], tuple[float, float], torch.Tensor]:
    """Best time and mean objective of ours and of faiss, and our last centroids."""
    points = vectors.cpu().numpy()
    results: list[list[tuple[float, float]]] = [[], []]
    centroids = vectors[:0]
    for seed in seeds:
        seconds, clustering = _timed(lambda seed=seed: spherical_kmeans(vectors, clusters, settings, seed))
        centroids = clustering.centroids
        results[0].append((seconds, mean_cosine(points, centroids.cpu().numpy())))
        seconds, peer = _timed(lambda seed=seed: _faiss_centroids(points, clusters, settings.max_iterations, seed))
        results[1].append((seconds, mean_cosine(points, peer)))
    ours, theirs = ((min(s for s, _ in runs), float(np.mean([o for _, o in runs]))) for runs in results)
    return ours, theirs, centroids


def _faiss_centroids(points: np.ndarray, clusters: int, iterations: int, seed: int) -> np.ndarray:
    import faiss

    every_point = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    kmeans = faiss.Kmeans(points.shape[1], clusters, niter=iterations, spherical=True, seed=seed, **every_point)
    kmeans.train(points)
    return kmeans.centroids


def mean_cosine(points: np.ndarray, centroids: np.ndarray) -> float:
    """Mean cosine of unit `points` (N, H) to the nearest of unit `centroids` (K, H), for both sides alike."""
    parts = range(0, len(points), 4096)
    nearest = [(points[i : i + 4096] @ centroids.T).max(axis=1) for i in parts]
    return float(np.concatenate(nearest).mean(dtype=np.float64))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, result
