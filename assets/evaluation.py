"""Rankings, scores and the comparison of all systems."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, picture, table
from assets.stage_assets import Page, stage_assets
from model_code.files import read_json
from model_code.stages.stage import Stage


def preview_metrics(folder: Path) -> Preview:
    """The metrics of each system that lies in the folder and then of variants, a row each, those of
    test first.
    """
    paths = sorted(folder.rglob("metrics.json"), key=lambda path: (len(path.parts), path))
    metrics, splits = [read_json(path) for path in paths], ("test", "gate", "dev")
    return {
        "metrics": table(
            [
                {"system": each["system"], "split": split, **each[split]}
                for split in splits
                for each in metrics
            ]
        )
    }


def preview_comparison(folder: Path) -> Preview:
    """Who is best and by how much, results by system, best first, and their picture."""
    from model_code.evaluation.report import summary_sentence

    comparison = read_json(folder / "comparison.json")
    main = comparison["main_metric"]
    rows = [
        {
            "system": system,
            main: cells[main]["value"],
            "low": cells[main]["low"],
            "high": cells[main]["high"],
        }
        | {name: cell["value"] for name, cell in cells.items() if name != main}
        for system, cells in comparison["systems"].items()
    ]
    drawn = folder / "comparison.png"
    return {
        "best": summary_sentence(comparison),
        "results": table(sorted(rows, key=lambda row: -row[main])),
        **({"picture": picture("comparison", drawn.read_bytes())} if drawn.is_file() else {}),
    }


FIRST = 1  # before training: what it makes can be searched at once
PAGES = {
    "baselines": Page("evaluation", frozenset({"bm25"}), preview_metrics, priority=FIRST),
    "evaluate": Page("retriever", frozenset({"trec"}), preview_metrics),
    "fuse": Page("retriever", frozenset({"trec"}), preview_metrics),
    "comparison": Page("evaluation", frozenset({"trec"}), preview_comparison),
}


def evaluation_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`baselines`, `NAME/evaluation` of each retriever and each fusion, and `comparison`."""
    return stage_assets(table, PAGES)
