"""What `dvc.lock` says of a stage's output: its hash is the asset's data version."""

from __future__ import annotations

from pathlib import Path

from model_code.errors import FreshetError
from orchestration.stages import Stage


def output_version(root: Path, stage: Stage) -> str:
    """The MD5 that DVC recorded for `stage`'s output; raises `FreshetError` if it never ran."""
    for output in _read(root).get(stage.address, {}).get("outs", []):
        if output["path"] == stage.output:
            return str(output["md5"])
    raise FreshetError(f"dvc.lock has no output of {stage.address}: run it first (`freshet run {stage.address}`)")


def stages_that_ran(root: Path) -> set[str]:
    """The addresses of all stages that `dvc.lock` knows."""
    return set(_read(root))


def _read(root: Path) -> dict[str, dict[str, list[dict[str, str]]]]:
    from ruamel.yaml import YAML

    path = root / "dvc.lock"
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["stages"] if path.exists() else {}
