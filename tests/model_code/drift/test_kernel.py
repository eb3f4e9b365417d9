"""Guards MMD: a double loop over pairs in float64, scikit-learn's kernel, the null distribution, and what it detects.

pytest tests/model_code/drift/test_kernel.py
"""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from model_code.drift.draws import draw_batches
from model_code.drift.kernel import gaussian_kernel, mean_kernel, median_bandwidth, mmd, null_mmd


def normal(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, 5)) + shift).astype(np.float32)


def loop(old: np.ndarray, new: np.ndarray, bandwidth: float) -> float:
    def k(x: np.ndarray, y: np.ndarray) -> float:
        return exp(-sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True)) / bandwidth)

    def within(rows: np.ndarray) -> float:
        pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
        return sum(k(rows[i], rows[j]) for i, j in pairs) / len(pairs)

    return within(old) + within(new) - 2 * sum(k(x, y) for x in old for y in new) / len(old) / len(new)


def test_mmd_is_the_double_loop() -> None:
    old, new = normal(14, 0), normal(9, 1, 0.5)
    assert mmd(old, new, 3.0) == pytest.approx(loop(old, new, 3.0), abs=1e-12)
    assert mmd(old, new, 3.0, mean_kernel(old, 3.0)) == mmd(old, new, 3.0)


def test_the_kernel_is_scikit_learns() -> None:
    from sklearn.metrics.pairwise import rbf_kernel

    old, new = normal(14, 0).astype(float), normal(9, 1).astype(float)
    np.testing.assert_allclose(gaussian_kernel(old, new, 3.0), rbf_kernel(old, new, gamma=1 / 3.0), atol=1e-12)


def test_the_bandwidth_is_twice_the_median_squared_distance() -> None:
    rows = np.array([[0.0], [1.0], [3.0]])  # squared distances 1, 4, 9
    assert median_bandwidth(rows) == 8
    assert median_bandwidth(np.zeros((4, 2))) > 0


def test_null_values_are_those_of_each_drawn_batch() -> None:
    rows = normal(40, 0)
    members = draw_batches(40, 12, 20, seed=0)
    expected = [mmd(rows[~row], rows[row], 3.0) for row in members]
    np.testing.assert_allclose(null_mmd(rows, members, 3.0), expected, atol=1e-12)


def test_unbiased_without_drift_and_far_beyond_the_null_with_it() -> None:
    rows = normal(150, 0)
    null = null_mmd(rows, draw_batches(150, 40, 200, seed=0), 5.0)
    assert abs(null.mean()) < null.std() / 5
    assert mmd(rows, normal(40, 1), 5.0) < np.quantile(null, 0.99)
    assert mmd(rows, normal(40, 1, shift=0.8), 5.0) > 3 * null.max()


def test_the_order_of_rows_does_not_matter() -> None:
    old, new = normal(30, 0), normal(20, 1)
    assert mmd(old[::-1], new[::-1], 4.0) == pytest.approx(mmd(old, new, 4.0), abs=1e-14)
