"""`dvc.yaml` as the stage table says it; `python -m orchestration.pipeline.dvc_file` writes it from the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestration.pipeline.stages import TABLE, Stage

HEADER = (
    "# Written from the stage table: edit orchestration/pipeline/stages.py, "
    "then run `python -m orchestration.pipeline.dvc_file`.\n"
)
FOLDER = "artifacts/comparison"
METRICS = [f"{FOLDER}/metrics.json"]
PLOTS: list[dict[str, Any]] = [
    {f"{FOLDER}/training.csv": {"template": "linear", "x": "step", "y": "loss"}},
    # Columns are systems, whose names are the user's: without y, DVC draws the last one, which is a retriever.
    {f"{FOLDER}/recall.csv": {"template": "linear", "x": "k"}},
    {f"{FOLDER}/levels.csv": {"template": "linear", "x": "level"}},
]


def stage_entry(stage: Stage) -> dict[str, Any]:
    """What `dvc.yaml` holds for one row of the table."""
    row = stage.of("${key}") if stage.each else stage
    body = {
        "cmd": row.command,
        "desc": row.description,
        "deps": list(row.reads),
        "params": list(row.groups),
        "outs": [row.output],
    }
    return {"foreach": f"${{{stage.each}}}", "do": body} if stage.each else body


def render() -> dict[str, Any]:
    """The whole file as a mapping."""
    return {"stages": {stage.name: stage_entry(stage) for stage in TABLE}, "metrics": METRICS, "plots": PLOTS}


def main() -> None:
    """Write `dvc.yaml` in the working directory."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    with Path("dvc.yaml").open("w", encoding="utf-8") as stream:
        stream.write(HEADER)
        yaml.dump(render(), stream)


if __name__ == "__main__":
    main()
