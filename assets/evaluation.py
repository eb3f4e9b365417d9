"""Rankings, scores and the comparison of all systems."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import Preview, picture, table
from assets.stage_assets import Page, stage_assets
from model_code.files import read_json
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_evaluation(folder: Path) -> Preview:
    """The metrics of one system and of its variants, a row each."""
    return {"metrics": table(metric_rows([folder, *sorted(folder.glob("variants/*"))]))}


def preview_baselines(folder: Path) -> Preview:
    """The metrics of each baseline and its variants, a row each."""
    systems = sorted(path.parent for path in folder.glob("*/metrics.json"))
    return {"metrics": table(metric_rows([*systems, *sorted(folder.glob("*/variants/*"))]))}


def metric_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The metrics that lie in evaluation folders: test first, systems in the order given."""
    found = [read_json(folder / "metrics.json") for folder in folders]
    splits = ("test", "gate", "dev")
    return [{"system": each["system"], "split": split, **each[split]} for split in splits for each in found]


def preview_comparison(folder: Path) -> Preview:
    """Who is best and by how much, results by system, best first, and their picture."""
    from model_code.evaluation.report import lead

    comparison = read_json(folder / "comparison.json")
    main = comparison["main_metric"]
    rows = [
        {"system": system, main: cells[main]["value"], "low": cells[main]["low"], "high": cells[main]["high"]}
        | {name: cell["value"] for name, cell in cells.items() if name != main}
        for system, cells in comparison["systems"].items()
    ]
    drawn = folder / "comparison.png"
    return {
        "best": lead(comparison),
        "results": table(sorted(rows, key=lambda row: -row[main])),
        **({"picture": picture("comparison", drawn.read_bytes())} if drawn.is_file() else {}),
    }


FIRST = 1  # before training: what it makes can be searched at once
BASELINES = Page("evaluation", frozenset({"bm25"}), preview_baselines, priority=FIRST)
EVALUATE = Page("retriever", frozenset({"trec"}), preview_evaluation)
FUSE = Page("retriever", frozenset({"trec"}), preview_evaluation)
COMPARISON = Page("evaluation", frozenset({"trec"}), preview_comparison)


def evaluation_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`baselines`, `NAME/evaluation` of each retriever and each fusion, and `comparison`."""
    pages = {"baselines": BASELINES, "evaluate": EVALUATE, "fuse": FUSE, "comparison": COMPARISON}
    return stage_assets(project, table, pages)
