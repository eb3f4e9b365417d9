"""Compare systems with paired tests over queries, and format the results for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test

BOOTSTRAP_SAMPLES = 2000
RANDOMISATIONS = 10_000
CONFIDENCE = 0.95


def compare_systems(differences: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Test whether the means of paired differences are 0.

    Args:
        differences: Differences of the scores of two systems, one per query (q,), by the name of
            the comparison.

    Returns:
        For each name a list of four numbers, rounded to 4 digits: the mean difference, the lower
        and the upper end of its 95 % bootstrap interval, and p. The p-values are corrected for the
        number of comparisons (Holm).
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
    """Return two cells of a Markdown table: the difference with its interval, and p.

    Args:
        comparison: Four numbers of `compare_systems`. None: the cells are empty.
    """
    if comparison is None:
        return "| | |"
    difference, low, high, p = comparison
    return f"| {difference:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |"
