"""Rankings, scores and the comparison of all systems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.family import AssetFamily, Check, markdown_table
from model_code.files import read_json


def preview_evaluation(folder: Path) -> Mapping[str, str]:
    """Dev and test metrics of one system."""
    metrics = read_json(folder / "metrics.json")
    rows = [{"split": split, **metrics[split]} for split in ("dev", "test") if metrics.get(split)]
    return {"metrics": markdown_table(rows), "judged by": metrics["source"]}


def preview_comparison(folder: Path) -> Mapping[str, str]:
    """The whole report."""
    return {"report": (folder / "comparison.md").read_text(encoding="utf-8")}


def has_queries(folder: Path) -> tuple[bool, Mapping[str, Any]]:
    """Whether the test metrics rest on any query at all."""
    queries = read_json(folder / "metrics.json")["test"]["queries"]
    return queries > 0, {"queries": queries}


BASELINES = AssetFamily(stage="baselines", noun="baselines", group="evaluation", kinds=frozenset({"bm25"}))
EVALUATE = AssetFamily(
    stage="evaluate",
    noun="evaluation",
    group="retrievers",
    kinds=frozenset({"trec"}),
    preview=preview_evaluation,
    checks=(Check("has_queries", "There is at least one judged test query.", has_queries),),
)
COMPARISON = AssetFamily(
    stage="comparison",
    noun="comparison",
    group="evaluation",
    kinds=frozenset({"markdown"}),
    preview=preview_comparison,
)
