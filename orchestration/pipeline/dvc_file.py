"""`dvc.yaml` as the stage table says it; `python -m orchestration.pipeline.dvc_file` writes it from
the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from model_code.files import atomic_write
from model_code.stages.stage import Stage
from orchestration.pipeline import code_lock
from orchestration.pipeline.stages import TABLE, run_command

HEADER = (
    "# Written from the stage table: edit model_code/stages, "
    "then run `python -m orchestration.pipeline.dvc_file`.\n"
)
FOLDER = "artifacts/comparison"
METRICS = [f"{FOLDER}/metrics.json"]
PLOTS = [f"{FOLDER}/comparison.png"]


def stage_entry(stage: Stage, own_code: bool = True) -> dict[str, Any]:
    """What `dvc.yaml` holds for one row of the table.

    own_code: the code lies in the project's folder, as in a clone; else the row depends on its hash
    in the code lock.
    """
    row = stage.for_retriever("${key}") if stage.expand_by else stage
    code: list[Any] = [] if own_code else [{code_lock.NAME: [stage.name]}]
    body = {
        "cmd": run_command(row),
        "desc": row.description,
        "deps": [*row.inputs.values(), *(row.code_files if own_code else ())],
        "params": [*row.groups, *code],
        "outs": [row.output],
    }
    return {"foreach": f"${{{stage.expand_by}}}", "do": body} if stage.expand_by else body


def render(own_code: bool = True) -> dict[str, Any]:
    """The whole file as a mapping."""
    stages = {stage.name: stage_entry(stage, own_code) for stage in TABLE}
    lock = {"outs": [{code_lock.NAME: {"cache": False, "persist": True}}], "always_changed": True}
    before = {} if own_code else {"code_lock": {"cmd": code_lock.COMMAND, **lock}}
    return {"stages": before | stages, "metrics": METRICS, "plots": PLOTS}


def write(path: Path, own_code: bool = True) -> None:
    """Write `dvc.yaml`."""
    yaml = YAML()
    yaml.width = 120
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as stream:
        stream.write(HEADER if own_code else "")
        yaml.dump(render(own_code), stream)


if __name__ == "__main__":
    write(Path("dvc.yaml"))
