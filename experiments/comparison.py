"""Compare systems with paired tests over queries, as the experiments' tables report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test

BOOTSTRAP_SAMPLES = 2000
RANDOMISATIONS = 10_000
CONFIDENCE = 0.95


def compare_systems(differences: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Return the mean, its interval and p of paired differences.

    Args:
        differences: Differences (q,) of each comparison.

    Returns:
        Mean, lower end, upper end and p (Holm over all comparisons) by name, rounded to 4 digits.
    """
    columns = np.column_stack(list(differences.values()))
    means = columns.mean(axis=0)
    low, high = bootstrap_interval(columns, BOOTSTRAP_SAMPLES, CONFIDENCE, 0)
    adjusted_p = holm(paired_randomisation_test(columns, RANDOMISATIONS, 0))
    comparisons = {}
    for column, name in enumerate(differences):
        numbers = (means[column], low[column], high[column], adjusted_p[column])
        comparisons[name] = [round(float(number), 4) for number in numbers]
    return comparisons


def comparison_cells(comparison: Sequence[float] | None) -> str:
    """Return two cells of a table, difference with interval and p; empty ones for None."""
    if comparison is None:
        return "| | |"
    difference, low, high, p = comparison
    return f"| {difference:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |"
