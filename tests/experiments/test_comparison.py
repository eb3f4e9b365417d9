"""Guards the paired comparison that the experiments' tables report."""

from __future__ import annotations

import numpy as np

from experiments.comparison import compare_systems, comparison_cells


def test_clear_gain_is_told_from_noise() -> None:
    random = np.random.default_rng(0)
    noise = random.standard_normal(200)
    comparisons = compare_systems({"gain": 0.5 + 0.1 * noise, "noise": noise - noise.mean()})

    mean, low, high, p = comparisons["gain"]
    assert low < mean < high
    assert low > 0.45
    assert p < 0.01
    _, low, high, p = comparisons["noise"]
    assert low < 0 < high
    assert p > 0.5


def test_p_is_adjusted_for_all_comparisons() -> None:
    difference = np.tile([0.3, 0.2, -0.2], 10)
    (_, _, _, alone) = compare_systems({"one": difference})["one"]
    (_, _, _, adjusted) = compare_systems({"one": difference, "two": difference})["one"]
    assert abs(adjusted - 2 * alone) < 2e-4


def test_cells_of_the_reference_are_empty() -> None:
    assert comparison_cells(None) == "| | |"
    assert comparison_cells([0.01, -0.002, 0.03, 0.25]) == "| +0.0100 [-0.0020, +0.0300] | 0.2500 |"
