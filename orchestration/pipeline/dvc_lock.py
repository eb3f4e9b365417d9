"""What DVC leaves in files: `dvc.lock`, whose hash of an output is the asset's data version, and its notes.

A DVC that was killed may leave the one half-written and the others stale; both are mended before the next build.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from model_code.errors import FreshetError
from model_code.files import write_text
from orchestration.pipeline.stages import Stage

LOCK = "dvc.lock"
NOTES = Path(".dvc", "tmp", "rwlock")  # which process reads or writes which output


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
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        return False
    return all("md5" in out for stage in stages.values() for out in stage.get("outs") or [{}])


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


def remove_stale_notes(root: Path) -> bool:
    """Remove the notes below `root` if no DVC that runs has made any of them; whether there were such.

    DVC passes over notes of processes that are gone, but asks only whether the number is in use. After a restart of the
    machine or the container it often is, by something else, and every build would end in "busy" until a person deletes
    the file. Notes that a running DVC shares stay as they are: it writes them, too.
    """
    path = root / NOTES
    if not path.exists():
        return False
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        processes = [writer["pid"] for writer in notes.get("write", {}).values()]
        processes += [reader["pid"] for readers in notes.get("read", {}).values() for reader in readers]
    except ValueError:  # cut off while they were written, which DVC refuses to read
        processes = [-1]
    if not processes or any(map(_is_dvc, processes)):
        return False
    path.unlink(missing_ok=True)
    return True


def _is_dvc(pid: int) -> bool:
    try:
        return "dvc" in " ".join(psutil.Process(pid).cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return False
