"""Assets of the evaluation: rankings and scores of each system, and the comparison."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import Preview, picture, table
from assets.stage_assets import AssetPage, stage_assets
from model_code.files import read_json
from model_code.stages.stage import Stage


def preview_metrics(folder: Path) -> Preview:
    """Show the metrics of each split and system, the test split first.

    Folders of variants of a system are deeper than those of the system, so that variants come last.
    """
    paths = sorted(folder.rglob("metrics.json"), key=lambda path: (len(path.parts), path))
    metrics_by_system = [read_json(path) for path in paths]
    rows = []
    for split in ("test", "gate", "dev"):
        for metrics in metrics_by_system:
            row = {"system": metrics["system"], "split": split}
            row.update(metrics[split])
            rows.append(row)
    return {"metrics": table(rows)}


def preview_comparison(folder: Path) -> Preview:
    """Show the lead of the best system, the results sorted by the main metric, and a picture."""
    # Imported here because it imports pandas, which would slow down the loading of the definitions.
    from model_code.evaluation.report import summary_sentence

    comparison = read_json(folder / "comparison.json")
    main_metric = comparison["main_metric"]

    rows = []
    for system, cells in comparison["systems"].items():
        row = {
            "system": system,
            main_metric: cells[main_metric]["value"],
            "low": cells[main_metric]["low"],
            "high": cells[main_metric]["high"],
        }
        for name, cell in cells.items():
            if name != main_metric:
                row[name] = cell["value"]
        rows.append(row)
    rows.sort(key=lambda row: -row[main_metric])

    preview: dict[str, Any] = {"best": summary_sentence(comparison), "results": table(rows)}
    drawing = folder / "comparison.png"
    if drawing.is_file():
        preview["picture"] = picture("comparison", drawing.read_bytes())
    return preview


# Baselines run before training, because they can be made live before anything is trained.
BASELINES_PRIORITY = 1
PAGES = {
    "baselines": AssetPage(
        "evaluation", frozenset({"bm25"}), preview_metrics, priority=BASELINES_PRIORITY
    ),
    "evaluate": AssetPage("retriever", frozenset({"trec"}), preview_metrics),
    "fuse": AssetPage("retriever", frozenset({"trec"}), preview_metrics),
    "comparison": AssetPage("evaluation", frozenset({"trec"}), preview_comparison),
}


def evaluation_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """Return `baselines`, `NAME/evaluation` of each retriever and fusion, and `comparison`."""
    return stage_assets(table, PAGES)
