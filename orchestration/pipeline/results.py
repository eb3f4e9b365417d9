"""The comparison as the command line prints it: one object per system, or a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_code.errors import FreshetError
from model_code.evaluation.comparison import is_variant
from model_code.files import read_json
from orchestration.project import Project

SHOWN = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")  # after the main metric, where they are measured
JUDGES = {"qrels": "the corpus's own qrels", "pseudo-queries": "held-out pseudo-queries, as it has no qrels"}


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def shown_metrics(comparison: Mapping[str, Any]) -> list[str]:
    """The metrics of the table: the main one, then the usual ones that were measured."""
    measured = next(iter(comparison["systems"].values()))
    return list(dict.fromkeys([comparison["main_metric"], *(metric for metric in SHOWN if metric in measured)]))


def results_table(comparison: Mapping[str, Any]) -> str:
    """The test results as aligned text, with the interval of the first two metrics and who judged."""
    systems, shown = comparison["systems"], shown_metrics(comparison)
    interval = f"[{100 * comparison['confidence']:g} % interval]"
    header = ["system", *(f"{metric} {interval}" for metric in shown[:2]), *shown[2:]]
    ordered = sorted(systems, key=is_variant)  # variants after all systems, each kept in its order
    rows = [header] + [[_name(system, comparison), *_cells(systems[system], shown)] for system in ordered]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    queries = f"{comparison['queries']:,} {comparison['split']} queries"
    return "\n".join([*lines, f"({queries}, judged by {JUDGES[comparison['source']]})"])


def differences_table(comparison: Mapping[str, Any], metric: str) -> str:
    """Paired differences on one metric with interval and Holm-adjusted p."""
    return "\n".join(
        f"{row['system']} - {row['reference']}: {row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] "
        f"p (Holm) {row['p_holm']:.4f}"
        for row in comparison["differences"]
        if row["metric"] == metric
    )


def _name(system: str, comparison: Mapping[str, Any]) -> str:
    seeds = comparison.get("seeds", {}).get(system, 1)
    return system if seeds == 1 else f"{system} ({seeds} seeds)"


def _cells(metrics: Mapping[str, Mapping[str, float]], shown: list[str]) -> list[str]:
    exact = [f"{metrics[m]['value']:.3f} [{metrics[m]['low']:.3f}, {metrics[m]['high']:.3f}]" for m in shown[:2]]
    return exact + [f"{metrics[metric]['value']:.3f}" for metric in shown[2:]]
