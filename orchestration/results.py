"""The comparison as the command line prints it: one object per system, or a table for people."""

from __future__ import annotations

from typing import Any

from model_code.errors import FreshetError
from model_code.files import read_json
from orchestration.project import Project

SHOWN = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def load_results(project: Project) -> dict[str, Any]:
    """System -> metric -> {"value", "low", "high", "queries"} on the test queries."""
    return load_comparison(project)["systems"]


def results_table(project: Project) -> str:
    """The test results as aligned text, with the interval of the first metric and who judged."""
    comparison = load_comparison(project)
    shown = [metric for metric in SHOWN if metric in next(iter(comparison["systems"].values()))]
    header = ["system", f"{shown[0]} [95 % interval]", *shown[1:]]
    rows = [header] + [
        [system, _with_interval(metrics[shown[0]]), *(f"{metrics[metric]['value']:.3f}" for metric in shown[1:])]
        for system, metrics in comparison["systems"].items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    judged = {"qrels": "the corpus's own qrels", "pseudo-queries": "held-out pseudo-queries, as it has no qrels"}
    return "\n".join([*lines, f"({comparison['queries']:,} {comparison['split']} queries, judged by {judged[comparison['source']]})"])


def _with_interval(cell: dict[str, float]) -> str:
    return f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
