"""Garbage, and what the pipeline leaves of it: checkpoints, half-made outputs, DVC's cache of old outputs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from model_code.errors import FreshetError
from orchestration.pipeline.dvc_process import dvc_command, environment, uses_git
from orchestration.project import Project


@dataclass(frozen=True)
class Garbage:
    """Something that can be freed: what it is, how much it frees, and how."""

    what: str
    megabytes: float
    free: Callable[[], None]


def leftovers(project: Project) -> Iterator[Garbage]:
    """Checkpoints and half-made outputs of stages that did not finish."""
    for kind in ("checkpoints", "staging"):
        for path in sorted((project.state / kind).glob("*")):
            yield Garbage(f"{kind} of {path.name[:24]}", size(path), partial(remove, path))


def dvc_cache(project: Project) -> Iterator[Garbage]:
    """Cached outputs that neither the working tree nor any commit, branch or experiment of it refers to."""
    if not (project.root / ".dvc" / "cache").exists():
        return
    scope = ["--workspace", *(["--all-commits", "--all-experiments"] if uses_git(project.root) else [])]
    listed = _dvc_gc(project, [*scope, "--dry"])
    files = [Path(name) for name in re.findall(r"^Removing (.+)$", listed, re.MULTILINE)]
    if files:
        what = f"{len(files)} files of DVC's cache that no commit or experiment refers to"
        yield Garbage(what, sum(file.stat().st_size for file in files) / 1e6, lambda: _free_cache(project, scope))


def _free_cache(project: Project, scope: list[str]) -> None:
    _dvc_gc(project, [*scope, "--force"])


def _dvc_gc(project: Project, options: list[str]) -> str:
    command = dvc_command("gc", *options)
    done = subprocess.run(command, cwd=project.root, env=environment(project), capture_output=True, text=True)
    if done.returncode:
        raise FreshetError(f"`dvc gc` failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def remove(path: Path) -> None:
    """Remove a folder, unless the build that was using it when it was listed has finished and moved it."""
    if path.exists():
        shutil.rmtree(path)


def size(path: Path) -> float:
    """Megabytes in all files below `path`."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
