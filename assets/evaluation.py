"""Rankings, scores and the comparison of all systems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import markdown_table, picture
from assets.stage_assets import Check, Page, stage_assets
from model_code.context import StageContext
from model_code.files import read_json
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_evaluation(folder: Path) -> Mapping[str, str]:
    """Dev and test metrics of one system, then of its variants."""
    return {"metrics": metrics_table(read_json(folder / "metrics.json")), **_variants(folder)}


def _variants(folder: Path) -> dict[str, str]:
    """The same for each variant, under the name `R.NAME`."""
    variants = [read_json(path) for path in sorted(folder.glob("variants/*/metrics.json"))]
    return {f"{metrics['system']} metrics": metrics_table(metrics) for metrics in variants}


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """One row per metric, with its dev and test value.

    >>> print(metrics_table({"source": "qrels", "dev": {"queries": 3}, "test": {"queries": 5}}))
    | metric | dev | test |
    |---|---|---|
    | queries | 3 | 5 |
    """
    dev, test = metrics["dev"], metrics["test"]  # a split without queries has no other value
    return markdown_table([{"metric": m, "dev": dev.get(m, ""), "test": test.get(m, "")} for m in {**test, **dev}])


def preview_baselines(folder: Path) -> Mapping[str, str]:
    """Dev and test metrics of each baseline and its variants."""
    shown: dict[str, str] = {}
    for path in sorted(folder.glob("*/metrics.json")):
        shown |= {f"{path.parent.name} metrics": metrics_table(read_json(path)), **_variants(path.parent)}
    return shown


def preview_comparison(folder: Path) -> Mapping[str, str]:
    """The results table, the whole report and its plots."""
    report = (folder / "comparison.md").read_text(encoding="utf-8")
    plots = {f"plot of {path.stem}": picture(path.stem, path.read_bytes()) for path in sorted(folder.glob("*.png"))}
    results = report.partition("## Results")[2].partition("\n## ")[0].strip()
    return {"results": results, "report": report, **plots}


def has_queries(context: StageContext) -> tuple[bool, Mapping[str, Any]]:
    """Whether the metrics rest on any query at all: of test or, as in the comparison, of dev if there is none."""
    metrics = read_json(context.output / "metrics.json")
    queries = {split: metrics[split]["queries"] for split in ("dev", "test")}
    return any(queries.values()), queries


FIRST = 1  # before training: what it makes can be searched at once
BASELINES = Page("evaluation", frozenset({"bm25"}), preview_baselines, priority=FIRST)
JUDGED = Check("has_queries", "There is at least one judged dev or test query.", has_queries)
EVALUATE = Page("retriever", frozenset({"trec"}), preview_evaluation, (JUDGED,))
FUSE = Page("retriever", frozenset({"trec"}), preview_evaluation, (JUDGED,))
COMPARISON = Page("evaluation", frozenset({"markdown"}), preview_comparison)


def evaluation_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`baselines`, `NAME/evaluation` of each retriever and each fusion, and `comparison`."""
    pages = {"baselines": BASELINES, "evaluate": EVALUATE, "fuse": FUSE, "comparison": COMPARISON}
    return stage_assets(project, table, pages)
