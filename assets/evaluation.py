"""Rankings, scores and the comparison of all systems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import Preview, pictures, table
from assets.stage_assets import Check, Page, stage_assets
from model_code.context import StageContext
from model_code.files import read_json
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_evaluation(folder: Path) -> Preview:
    """Dev and test metrics of one system and of its variants, a row each."""
    return {"metrics": table(metric_rows([folder, *sorted(folder.glob("variants/*"))]))}


def preview_baselines(folder: Path) -> Preview:
    """Dev and test metrics of each baseline and its variants, a row each."""
    systems = sorted(path.parent for path in folder.glob("*/metrics.json"))
    return {"metrics": table(metric_rows([*systems, *sorted(folder.glob("*/variants/*"))]))}


def metric_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The metrics that lie in evaluation folders: test before dev, systems in the order given."""
    found = [read_json(folder / "metrics.json") for folder in folders]
    return [{"system": each["system"], "split": split, **each[split]} for split in ("test", "dev") for each in found]


def preview_comparison(folder: Path) -> Preview:
    """Results by system, best first; where the report lies; its plots."""
    comparison = read_json(folder / "comparison.json")
    main = comparison["main_metric"]
    rows = [
        {"system": system, main: cells[main]["value"], "low": cells[main]["low"], "high": cells[main]["high"]}
        | {name: cell["value"] for name, cell in cells.items() if name != main}
        for system, cells in comparison["systems"].items()
    ]
    plots = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.png"))}
    return {
        "results": table(sorted(rows, key=lambda row: -row[main])),
        "report": dg.MetadataValue.path(folder / "comparison.html"),
        "plots": pictures(plots),
    }


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
