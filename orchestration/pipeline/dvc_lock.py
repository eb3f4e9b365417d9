"""What `dvc.lock` says of a stage's output: its hash is the asset's data version."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import write_text
from orchestration.pipeline.stages import Stage

LOCK = "dvc.lock"


def output_version(root: Path, stage: Stage) -> str:
    """The MD5 that DVC recorded for `stage`'s output; raises `FreshetError` if it never ran."""
    for output in _read(root).get(stage.address, {}).get("outs", []):
        if output["path"] == stage.output:
            return str(output["md5"])
    raise FreshetError(f"dvc.lock has no output of {stage.address}: run it first (`freshet run {stage.address}`)")


def stages_that_ran(root: Path) -> set[str]:
    """The addresses of all stages that `dvc.lock` knows; raises `FreshetError` if it is cut off."""
    return set(_read(root))


def keep_copy(root: Path, copy: Path) -> None:
    """Keep the lock as it is now, so that `mend` can go back to it."""
    if (root / LOCK).exists():
        write_text(copy, (root / LOCK).read_text(encoding="utf-8"))


def mend(root: Path, copy: Path) -> bool:
    """Put `copy` in the place of a lock that a killed DVC left half-written (it writes it in place); whether it did.

    What ran since the copy was made is found again in DVC's run cache.
    """
    path = root / LOCK
    if not path.exists() or _is_whole(_text(path)):
        return False
    if copy.exists():
        write_text(path, copy.read_text(encoding="utf-8"))
    else:
        path.unlink()
    return True


def _is_whole(text: str) -> bool:
    from ruamel.yaml.error import YAMLError

    try:
        lock = _parse(text)
    except YAMLError:
        return False
    stages = lock.get("stages") if isinstance(lock, dict) else None
    return isinstance(stages, dict) and all(map(_is_recorded, stages.values()))


def _is_recorded(stage: Any) -> bool:
    return isinstance(stage, dict) and all("md5" in out for out in stage.get("outs") or [{}])


def _read(root: Path) -> dict[str, dict[str, list[dict[str, str]]]]:
    path = root / LOCK
    if not path.exists():
        return {}
    if not _is_whole(_text(path)):
        raise FreshetError(f"{LOCK} is not whole: run `freshet run`, which goes back to the last one that was")
    return _parse(_text(path))["stages"]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@lru_cache(maxsize=1)
def _parse(text: str) -> Any:
    """The lock, to be read only; remembered, as every asset asks."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)
