"""Write `dvc.yaml` from the declarations of the stages.

Run it with `python -m orchestration.pipeline.dvc_file`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from model_code.errors import FreshetError
from model_code.files import atomic_write
from model_code.stages.stage import Stage
from orchestration.pipeline import code_lock
from orchestration.pipeline.stages import TABLE, run_command

HEADER = (
    "# Written from the declarations in model_code/stages: edit them, "
    "then run `python -m orchestration.pipeline.dvc_file`.\n"
)
COMPARISON = "artifacts/comparison"
METRICS = [f"{COMPARISON}/metrics.json"]
PLOTS = [f"{COMPARISON}/comparison.png"]
# Lines of `dvc.yaml` are wrapped at this number of characters.
LINE_WIDTH = 120


def stage_entry(stage: Stage, has_own_code: bool = True) -> dict[str, Any]:
    """Return the entry of one stage in `dvc.yaml`.

    Args:
        stage: A stage that is not expanded by retriever. DVC expands it with `foreach`.
        has_own_code: Whether the code is in the project's folder, as in a clone. Otherwise the
            entry depends on the hash of the code in `code.lock.json`.
    """
    if stage.expand_by is not None:
        # DVC replaces `${key}` by the name of each retriever.
        stage = stage.for_retriever("${key}")

    dependencies = list(stage.inputs.values())
    params: list[Any] = list(stage.groups)
    if has_own_code:
        dependencies += stage.code_files
    else:
        params.append({code_lock.NAME: [stage.name]})

    body = {
        "cmd": run_command(stage),
        "desc": stage.description,
        "deps": dependencies,
        "params": params,
        "outs": [stage.output],
    }
    if stage.expand_by is None:
        return body
    return {"foreach": f"${{{stage.expand_by}}}", "do": body}


def render(has_own_code: bool = True) -> dict[str, Any]:
    """Return the content of `dvc.yaml` with all stages. See `stage_entry` for `has_own_code`."""
    stages: dict[str, Any] = {}
    if not has_own_code:
        stages["code_lock"] = {
            "cmd": code_lock.COMMAND,
            "outs": [{code_lock.NAME: {"cache": False, "persist": True}}],
            "always_changed": True,
        }
    for stage in TABLE:
        stages[stage.name] = stage_entry(stage, has_own_code)
    return {"stages": stages, "metrics": METRICS, "plots": PLOTS}


def write(path: Path, has_own_code: bool = True) -> None:
    """Write all stages to the `dvc.yaml` at `path`. See `stage_entry` for `has_own_code`."""
    yaml = YAML()
    yaml.width = LINE_WIDTH
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        if has_own_code:
            stream.write(HEADER)
        yaml.dump(render(has_own_code), stream)


def update(root: Path) -> None:
    """Bring the `dvc.yaml` of a project up to date with the installed stages.

    Another version of Freshet may have other stages, or stages that read other settings. Stages
    that the user added are kept. Nothing is written in a clone, whose `dvc.yaml` belongs to the
    code. A clone is recognised by its lack of a `code.lock.json`.

    Args:
        root: Folder of the project.

    Raises:
        FreshetError: If `dvc.yaml` holds no stages.
    """
    path = root / "dvc.yaml"
    if not path.is_file() or not (root / code_lock.NAME).is_file():
        return

    if _is_current(path.read_text(encoding="utf-8")):
        return
    yaml = YAML()
    yaml.width = LINE_WIDTH
    content = yaml.load(path)
    if not isinstance(content, dict) or not isinstance(content.get("stages"), dict):
        raise FreshetError(
            f"{path} holds no stages; delete it and run `freshet init` in its folder, which writes "
            "it again"
        )

    content["stages"].update(_changed_stages(content["stages"]))
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        yaml.dump(content, stream)


@lru_cache(maxsize=1)
def _is_current(text: str) -> bool:
    """Return whether the text of a `dvc.yaml` declares all stages as they are installed.

    The answer is cached, because a build asks several times, and parsing takes a tenth of a second.
    """
    content = YAML(typ="safe").load(text)
    if not isinstance(content, dict) or not isinstance(content.get("stages"), dict):
        return False
    return not _changed_stages(content["stages"])


def _changed_stages(stages: dict[str, Any]) -> dict[str, Any]:
    """Return the declarations of installed stages that differ from those in a `dvc.yaml`."""
    declared = render(has_own_code=False)["stages"]
    return {name: body for name, body in declared.items() if stages.get(name) != body}


if __name__ == "__main__":
    write(Path("dvc.yaml"))
