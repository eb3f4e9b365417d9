"""Comparison of all systems on the same queries: means with intervals, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_code.evaluation.scores import (
    SCORE_DECIMALS,
    WITH_KNOWN,
    WITHOUT_KNOWN,
    SystemScores,
    check_comparable,
)
from model_code.evaluation.settings import UNTRAINED_SYSTEMS, EvaluationSettings
from model_code.evaluation.significance import (
    MIN_BOOTSTRAP_QUERIES,
    MIN_SEEDS,
    holm,
    interval_of_means,
    interval_over_seeds,
    paired_randomisation_test,
)

# Smallest number of queries of a group that is reported. In a smaller group, intervals are too wide
# to be of use.
MIN_GROUP_QUERIES = 20
# The two values of "over" in results: the sources of variance that an interval covers.
QUERIES = "queries"
QUERIES_AND_SEEDS = "queries and seeds"

Cell = dict[str, Any]
"""One mean or mean difference of a report, with its interval; see `compare_systems`."""


def compare_systems(
    systems: Sequence[SystemScores], settings: EvaluationSettings, seed: int
) -> dict[str, Any]:
    """Compare systems that were scored on the same queries.

    Each system is tested against each system of `settings.references` that comes before it in
    `sort_systems`. Variants (`R.NAME`) are not tested. Holm's correction covers all differences on
    one metric.

    The key "over" of a mean or difference tells which variance its interval covers. If each trained
    system was trained at least `MIN_SEEDS` times, the interval covers the variance over queries and
    over seeds. Otherwise it covers the variance over queries only. It then does not show how much
    the result of another training may differ.

    Args:
        systems: Scores on one split.
        settings: References, number of resamples, confidence.
        seed: Seed of the resamples.

    Returns:
        A dict with these keys:

        - "split" and "queries": the split and its number of queries.
        - "systems": {system: {metric: cell}}. A cell has "value", "low", "high", "over",
          "trainings" and "queries".
        - "differences": rows of "system", "reference", "metric", "difference", "low", "high",
          "over", "trainings", "p" and "p_holm".

        "over" is "queries" or "queries and seeds". "trainings" is the number of trainings, 0 for a
        system that is not trained. For a difference it is the smaller number of the two systems,
        where systems that are not trained do not count.

    Raises:
        FreshetError: If the systems were scored on different queries or metrics.
    """
    systems = sort_systems(systems, settings.references)
    check_comparable(systems)

    queries = systems[0].queries
    estimates = {}
    for scores in systems:
        cells = _cells(scores, None, settings, seed)
        for cell in cells.values():
            cell["queries"] = queries
        estimates[scores.system] = cells

    return {
        "split": systems[0].split,
        "queries": queries,
        "systems": estimates,
        "differences": _differences(systems, settings, seed),
    }


def sort_systems(systems: Sequence[SystemScores], references: Sequence[str]) -> list[SystemScores]:
    """Sort systems: references in their order, then other systems and variants, each by name."""
    rank = {name: i for i, name in enumerate(references)}

    def key(scores: SystemScores) -> tuple[bool, int, str]:
        name = scores.system
        return is_variant(name), rank.get(name, len(rank)), name

    return sorted(systems, key=key)


def is_variant(system: str) -> bool:
    """Return whether a name denotes a variant: another search of a compared system.

    The name of a variant contains a dot, and no retriever's name does.

    >>> is_variant("hce"), is_variant("hce.rrf")
    (False, True)
    """
    return "." in system


def count_trainings(scores: SystemScores) -> int:
    """Return how many trainings of a system its scores average over; 0 for an untrained system."""
    # A variant R.NAME searches the same trained system R, so it was trained as often.
    system, _, _ = scores.system.partition(".")
    if system in UNTRAINED_SYSTEMS:
        return 0
    return max(1, len(scores.seeds))


def _differences(
    systems: Sequence[SystemScores], settings: EvaluationSettings, seed: int
) -> list[Cell]:
    """Return a row per metric, system and reference with the mean difference of their scores.

    See `compare_systems` for the keys of a row. Rows are ordered by metric.
    """
    plain_systems = [system for system in systems if not is_variant(system.system)]
    pairs = []
    for i, system in enumerate(plain_systems):
        for reference in plain_systems[:i]:
            if reference.system in settings.references:
                pairs.append((system, reference))
    if not pairs:
        return []

    # Test the differences of each pair of systems on each metric. `p` has the shape (pairs,
    # metrics).
    metrics = list(systems[0].values.columns)
    columns = [
        (system.values - reference.values)[metrics].to_numpy() for system, reference in pairs
    ]
    p = paired_randomisation_test(np.hstack(columns), settings.permutations, seed)
    p = p.reshape(len(pairs), len(metrics))
    # The family of tests that Holm's correction covers is a column: all pairs on one metric.
    p_holm = np.apply_along_axis(holm, 0, p)

    cells = [_cells(system, reference, settings, seed) for system, reference in pairs]
    rows = []
    for j, metric in enumerate(metrics):
        for i, (system, reference) in enumerate(pairs):
            row: Cell = {
                "system": system.system,
                "reference": reference.system,
                "metric": metric,
            }
            row.update(cells[i][metric])
            row["p"] = round(float(p[i, j]), SCORE_DECIMALS)
            row["p_holm"] = round(float(p_holm[i, j]), SCORE_DECIMALS)
            rows.append(row)
    return rows


def _cells(
    system: SystemScores, reference: SystemScores | None, settings: EvaluationSettings, seed: int
) -> dict[str, Cell]:
    """Return a cell of the report for each metric: the mean score of a system, with its interval.

    If `reference` is given, the mean is that of the differences from the reference's scores. The
    interval covers the variance over trainings as well if every trained system was trained at least
    `MIN_SEEDS` times. See `compare_systems` for the keys of a cell.

    Args:
        system: Scores of the system.
        reference: Scores of another system on the same queries, or None.
        settings: Number of resamples, and confidence.
        seed: Seed of the resamples.
    """
    metrics = list(system.values.columns)
    if reference is None:
        mean_key = "value"
        lowest_value = 0.0
        table = system.values
        training_counts = [count_trainings(system)]
        reference_runs = None
    else:
        mean_key = "difference"
        lowest_value = -1.0
        table = system.values - reference.values
        training_counts = [count_trainings(system), count_trainings(reference)]
        reference_runs = reference.runs(metrics)

    # The score of each query by each metric, (queries, metrics).
    values = np.ascontiguousarray(table[metrics].to_numpy())

    # The confidence interval of a mean covers the choice of the queries. It also covers the
    # randomness of training if each trained system was trained at least `MIN_SEEDS` times. With
    # fewer trainings, their variance cannot be estimated.
    trainings = min((count for count in training_counts if count > 0), default=0)
    if trainings >= MIN_SEEDS and len(values) >= MIN_BOOTSTRAP_QUERIES:
        over = QUERIES_AND_SEEDS
        low, high = interval_over_seeds(
            system.runs(metrics), reference_runs, settings.confidence, lowest_value
        )
    else:
        over = QUERIES
        low, high = interval_of_means(
            values, settings.bootstrap_samples, settings.confidence, seed, lowest_value
        )

    means = values.mean(axis=0)
    cells: dict[str, Cell] = {}
    for i, metric in enumerate(metrics):
        cells[metric] = {
            mean_key: _round(means[i]),
            "low": _round(low[i]),
            "high": _round(high[i]),
            "over": over,
            "trainings": trainings,
        }
    return cells


def _round(value: float) -> float:
    """Round a score to `SCORE_DECIMALS` decimals for the report."""
    # Adding 0 turns a rounded -0.0 into 0.0, which reads better in a report.
    return round(float(value), SCORE_DECIMALS) + 0.0


def query_groups(scores: SystemScores) -> dict[str, list[str]]:
    """Group queries by whether a relevant document has known queries.

    A known query is a query that a document is known to answer. Memory can raise scores on queries
    for such documents only. Better scores on the other queries show generalisation. In SciFact,
    64 % of the test judgements point at documents of training queries.

    Args:
        scores: Scores of any system on the reported queries.

    Returns:
        Query ids of the groups `WITHOUT_KNOWN` and `WITH_KNOWN`. It is {} if a group has fewer than
        `MIN_GROUP_QUERIES` queries.
    """
    query_ids = set(scores.values.index)
    with_known = query_ids & scores.with_known
    without_known = query_ids - with_known
    if len(with_known) < MIN_GROUP_QUERIES or len(without_known) < MIN_GROUP_QUERIES:
        return {}
    return {WITHOUT_KNOWN: sorted(without_known), WITH_KNOWN: sorted(with_known)}


def most_changed_queries(
    best: SystemScores, reference: SystemScores, metric: str, number: int = 10
) -> dict[str, list[tuple[str, float]]]:
    """Return the queries on which `best` scores most above and most below `reference`.

    Returns:
        {"won": [(query id, difference), ...], "lost": [...]}, at most `number` queries each, the
        largest difference first. Ties are broken by query id. Equal scores are left out.
    """
    difference = (best.values[metric] - reference.values[metric]).sort_index()
    ascending = difference.sort_values(kind="stable")
    outcomes = {
        "won": ascending[ascending > 0].iloc[::-1],
        "lost": ascending[ascending < 0],
    }

    changed = {}
    for name, queries in outcomes.items():
        first = queries.iloc[:number]
        changed[name] = [
            (str(query), round(float(value), SCORE_DECIMALS)) for query, value in first.items()
        ]
    return changed
