"""Embedding drift by the maximum mean discrepancy: the distance of two samples' means in a Gaussian kernel's space.

MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y), over pairs of different rows (Gretton et al. 2012, eq. 3, the
unbiased estimate, which can be negative); k(x, y) = exp(-|x - y|^2 / (2 s^2)), s the median distance within the
reference, so that batches do not change the kernel. Its permutation test relabels the reference's documents: the batch
under suspicion is not part of its own null distribution.
"""

from __future__ import annotations

import numpy as np

MEDIAN_ROWS = 500  # rows that the median distance is taken over


def squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n, m) squared Euclidean distances, not below 0."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
    return np.maximum(squares, 0)


def median_bandwidth(vectors: np.ndarray) -> float:
    """2 s^2, twice the median squared distance between different rows of an even selection of (n, H) vectors."""
    chosen = vectors[np.unique(np.linspace(0, len(vectors) - 1, MEDIAN_ROWS).astype(int))].astype(np.float64)
    squares = squared_distances(chosen, chosen)[np.triu_indices(len(chosen), 1)]
    return 2 * max(float(np.median(squares)), np.finfo(np.float32).tiny)


def gaussian_kernel(left: np.ndarray, right: np.ndarray, bandwidth: float) -> np.ndarray:
    """k(x, y) for each pair of rows, (n, m)."""
    return np.exp(-squared_distances(left, right) / bandwidth)


def mmd(old: np.ndarray, new: np.ndarray, bandwidth: float, within_old: float | None = None) -> float:
    """MMD^2 between (n, H) and (m, H), unbiased. within_old: `mean_kernel(old, bandwidth)`, where it is known."""
    within_old = mean_kernel(old, bandwidth) if within_old is None else within_old
    across = gaussian_kernel(old.astype(np.float64), new.astype(np.float64), bandwidth).mean()
    return float(within_old + mean_kernel(new, bandwidth) - 2 * across)


def mean_kernel(rows: np.ndarray, bandwidth: float) -> float:
    """Mean of k over pairs of different rows of (n, H), n >= 2."""
    kernel, count = gaussian_kernel(rows.astype(np.float64), rows.astype(np.float64), bandwidth), len(rows)
    return float((kernel.sum() - np.trace(kernel)) / (count * (count - 1)))


def null_mmd(reference: np.ndarray, members: np.ndarray, bandwidth: float) -> np.ndarray:
    """MMD^2 of each drawn batch against the rest: (B,). members: (B, n), see `draw_batches`.

    All draws share one kernel matrix K: with a batch's indicator row s, the sum over its pairs is s K s.
    """
    kernel = gaussian_kernel(reference.astype(np.float64), reference.astype(np.float64), bandwidth)
    chosen = members.astype(np.float64)
    sums = chosen @ kernel  # (B, n)
    size = chosen.sum(axis=1)
    rest = len(reference) - size
    inside, touching = (sums * chosen).sum(axis=1), sums.sum(axis=1)
    across = touching - inside
    outside = kernel.sum() - inside - 2 * across
    trace = chosen @ np.diag(kernel)
    others = np.trace(kernel) - trace
    return (
        (inside - trace) / (size * (size - 1)) + (outside - others) / (rest * (rest - 1)) - 2 * across / (size * rest)
    )
