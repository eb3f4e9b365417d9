"""All systems on the same queries: means with bootstrap intervals, paired differences from the
reference systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from model_code.corpus.settings import SPLITS
from model_code.evaluation.scores import SCORE_DECIMALS, SystemScores, check_comparable
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.significance import (
    bootstrap_over_seeds,
    holm,
    interval_of_means,
    paired_randomisation_test,
)

SMALLEST_GROUP = 20  # queries; below, an interval says nothing


def compare_systems(
    systems: Sequence[SystemScores], settings: EvaluationSettings, seed: int
) -> dict[str, Any]:
    """Compare systems scored on the same queries.

    Returns {"split", "queries", "systems": {system: {metric: {"value", "low", "high", "queries"}}},
    "differences": [{"system", "reference", "metric", "difference", "low", "high", "p", "p_holm"}]}.
    Each system is tested against each of `settings.references` that stands before it in `sort_systems`;
    variants (`R.NAME`) are not tested. Holm's correction is over the differences on one metric.
    Raises `FreshetError` for systems with different queries or metrics.
    """
    systems = sort_systems(systems, settings.references)
    check_comparable(systems)
    queries, estimates = systems[0].queries, {}
    for scores in systems:
        cells = _cells(scores, None, settings, seed)
        estimates[scores.system] = {
            metric: cell | {"queries": queries} for metric, cell in cells.items()
        }
    differences = _differences(systems, settings, seed)
    return {
        "split": systems[0].split,
        "queries": queries,
        "systems": estimates,
        "differences": differences,
    }


def sort_systems(systems: Sequence[SystemScores], references: Sequence[str]) -> list[SystemScores]:
    """The references first, in their own order, then the other systems by name, then the variants
    by name.
    """
    rank = {name: i for i, name in enumerate(references)}
    return sorted(
        systems,
        key=lambda scores: (is_variant(name := scores.system), rank.get(name, len(rank)), name),
    )


def is_variant(system: str) -> bool:
    """Whether a system is another search of one that is compared, too; no retriever's own name
    holds a dot.

    >>> is_variant("hce"), is_variant("hce.rrf")
    (False, True)
    """
    return "." in system


def _differences(
    systems: Sequence[SystemScores], settings: EvaluationSettings, seed: int
) -> list[dict[str, Any]]:
    """Paired differences, metric by metric."""
    plain, metrics = (
        [system for system in systems if not is_variant(system.system)],
        list(systems[0].values.columns),
    )
    pairs = [
        (system, reference)
        for i, system in enumerate(plain)
        for reference in plain[:i]
        if reference.system in settings.references
    ]
    if not pairs:
        return []
    cells = [_cells(*pair, settings, seed) for pair in pairs]
    differences = np.hstack(
        [(system.values - reference.values)[metrics].to_numpy() for system, reference in pairs]
    )
    p = paired_randomisation_test(differences, settings.permutations, seed).reshape(
        len(pairs), len(metrics)
    )
    tests = np.stack([p, np.apply_along_axis(holm, 0, p)], axis=-1).round(SCORE_DECIMALS).tolist()
    return [
        {
            "system": system.system,
            "reference": reference.system,
            "metric": metric,
            **cells[i][metric],
        }
        | dict(zip(("p", "p_holm"), tests[i][j], strict=True))
        for j, metric in enumerate(metrics)
        for i, (system, reference) in enumerate(pairs)
    ]


def _cells(
    system: SystemScores, reference: SystemScores | None, settings: EvaluationSettings, seed: int
) -> dict[str, dict[str, float]]:
    """Of each metric a system's mean `value`, or its `difference` from a reference, and the
    interval, rounded.

    Intervals are over queries, and over seeds where there are several.
    """
    name, lowest = ("value", 0.0) if reference is None else ("difference", -1.0)
    metrics = list(system.values.columns)
    table = (system.values if reference is None else system.values - reference.values)[metrics]
    values, samples = np.ascontiguousarray(table.to_numpy()), settings.bootstrap_samples
    if system.seeds or (reference and reference.seeds):
        others = reference.runs(metrics) if reference else None
        low, high = bootstrap_over_seeds(
            system.runs(metrics), others, samples, settings.confidence, seed
        )
    else:
        low, high = interval_of_means(values, samples, settings.confidence, seed, lowest)
    # no -0.0
    rows = (np.column_stack([values.mean(axis=0), low, high]).round(SCORE_DECIMALS) + 0.0).tolist()
    return {
        metric: dict(zip((name, "low", "high"), row, strict=True))
        for metric, row in zip(metrics, rows, strict=True)
    }


def query_groups(qrels: pd.DataFrame, split: str, query_ids: Sequence[str]) -> dict[str, list[str]]:
    """Split queries by whether any of their relevant documents also answers a query of another
    split.

    Supervised training can only raise the "unseen" ones by generalising, the "seen" ones also by
    remembering (SciFact: 64 % of the test judgements point at documents of training queries). Both
    groups, or none if either is too small.
    """
    others = qrels[qrels["split"].isin(set(SPLITS) - {split})]
    reported = qrels[(qrels["split"] == split) & qrels["query_id"].isin(list(query_ids))]
    touched = set(reported.loc[reported["document_id"].isin(others["document_id"]), "query_id"])
    seen = sorted(touched)
    unseen = sorted(set(query_ids) - touched)
    return {"unseen": unseen, "seen": seen} if min(len(seen), len(unseen)) >= SMALLEST_GROUP else {}


def most_changed_queries(
    best: SystemScores, reference: SystemScores, metric: str, number: int = 10
) -> dict[str, list[tuple[str, float]]]:
    """The queries that `best` "won" and "lost" by most against `reference`, each with the
    difference; ties by id.
    """
    difference = (best.values[metric] - reference.values[metric]).sort_index()
    ascending = difference.sort_values(kind="stable")
    won, lost = ascending[ascending > 0].iloc[::-1], ascending[ascending < 0]
    return {
        name: [
            (str(query), round(float(value), SCORE_DECIMALS))
            for query, value in part.iloc[:number].items()
        ]
        for name, part in (("won", won), ("lost", lost))
    }
