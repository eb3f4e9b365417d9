"""Run DVC, and read and repair its files.

The hash of an output in `dvc.lock` is the asset's data version. A DVC that was killed may leave
this file half-written, and notes about outputs in use. Both are repaired before the next build.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from model_code.errors import FreshetError
from model_code.files import read_json, write_text
from model_code.project import PARAMS, Project
from model_code.stages.stage import Stage
from orchestration.parameters import get_by_path
from orchestration.pipeline import code_lock

# DVC's configuration files, in the folder `.dvc`.
CONFIG_FILES = ("config", "config.local")
# Variable in DVC's environment with the name of the build. The build's run in MLflow is the parent
# of the stages' runs.
BUILD_NAME = "FRESHET_BUILD"
# Variable in DVC's environment: the process that started DVC records the stages that have ended.
RECORDER = "FRESHET_RECORDER"
LOCK = "dvc.lock"
# DVC's notes about which process reads or writes which output.
NOTES = Path(".dvc", "tmp", "rwlock")

# The file with the state of the source, which the stage `corpus` depends on.
SOURCE_LOCK = "corpus.lock.json"


def command_line(*arguments: str) -> list[str]:
    """Return a command line of the DVC in this environment."""
    return [sys.executable, "-m", "dvc", *arguments]


def run_dvc(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run DVC in the project, and capture what it prints.

    Raises:
        FreshetError: If DVC fails. The message has the reason that it gives.
    """
    completed = subprocess.run(
        command_line(*arguments),
        cwd=project.root,
        env=environment(project),
        capture_output=True,
        text=True,
    )
    if completed.returncode:
        name = next(argument for argument in arguments if not argument.startswith("-"))
        raise FreshetError(f"`dvc {name}` failed: {error_reason(completed.stderr)}")
    return completed


def error_reason(stderr: str) -> str:
    """Return DVC's error without its warnings and advice, or everything if it names no error.

    >>> error_reason("WARNING: old cache\\nERROR: params.yaml is broken\\nHaving any troubles?")
    'params.yaml is broken'
    """
    for line in stderr.splitlines():
        if line.startswith("ERROR:"):
            return line.removeprefix("ERROR:").strip()
    return stderr.strip()


def environment(project: Project, **extra: str) -> dict[str, str]:
    """Return the environment for DVC, in which `python` is this interpreter.

    Args:
        project: The project, whose state folder the stages use.
        **extra: Further variables.
    """
    variables = dict(os.environ)
    variables["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    variables["FRESHET_STATE"] = str(project.state)
    variables["PYTHONUNBUFFERED"] = "1"
    variables.update(extra)
    return variables


def initialise(project: Project) -> None:
    """Make the project's folder a DVC project if it is none, and update its code lock.

    DVC follows git if the folder is a repository.
    """
    code_lock.write(project.root)
    # `dvc init` writes the file of its configuration last.
    if (project.root / ".dvc/config").is_file():
        _configure_git(project.root.resolve())
        return
    options = [] if (project.root / ".git").exists() else ["--no-scm"]
    if (project.root / ".dvc").exists():
        # An interrupted `dvc init` left a part of the folder.
        options.append("--force")
    run_dvc(project, "init", "-q", *options)


def uses_git(root: Path) -> bool:
    """Return whether DVC follows git: in a repository, unless its configuration forbids it."""
    if not in_git(root.resolve()):
        return False
    return not any(_forbids_git(root / ".dvc" / name) for name in CONFIG_FILES)


def in_git(root: Path) -> bool:
    """Return whether a folder is a git repository or inside one."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _configure_git(root: Path) -> None:
    """Bring DVC's configuration in line with git. The project may have been copied or moved.

    Without git, DVC starts only if its configuration says so.
    """
    has_git = in_git(root)
    shared_config, local_config = (root / ".dvc" / name for name in CONFIG_FILES)
    if has_git and _forbids_git(local_config):
        change = ["core.no_scm", "--unset"]
    elif not has_git and not _forbids_git(shared_config) and not _forbids_git(local_config):
        change = ["core.no_scm", "true"]
    else:
        return
    subprocess.run(command_line("config", "-q", "--local", *change), cwd=root, check=True)


def _forbids_git(config: Path) -> bool:
    if not config.exists():
        return False
    pattern = r"^\s*no_scm\s*=\s*true\b"
    return re.search(pattern, config.read_text(), re.IGNORECASE | re.MULTILINE) is not None


def stage_end_prefix(address: str) -> str:
    """Return the beginning of a stage's last line, which tells the build that the stage ran."""
    return f"  {address}: done in "


def output_version(root: Path, stage: Stage) -> str:
    """Return the MD5 that DVC recorded for a stage's output.

    Raises:
        FreshetError: If the stage never ran.
    """
    entry = _read_lock(root).get(stage.address, {})
    for output in entry.get("outs", []):
        if output["path"] == stage.output:
            return str(output["md5"])
    raise FreshetError(
        f"dvc.lock has no output of {stage.address}: run it first (`freshet run {stage.address}`)"
    )


def stages_that_ran(root: Path) -> set[str]:
    """Return the addresses of all stages in `dvc.lock`.

    Raises:
        FreshetError: If the file is cut off.
    """
    return set(_read_lock(root))


def changed_stages(root: Path, settings: Mapping[str, Any]) -> set[str]:
    """Return the addresses of the stages that a changed setting, source or code runs again.

    This reads `dvc.lock` and hashes one small file, which takes milliseconds. Code is compared by
    `code.lock.json`, which a project beside its code has. DVC itself also hashes code and outputs.

    Args:
        root: Root of the project.
        settings: Content of `params.yaml`.

    Raises:
        FreshetError: If `dvc.lock` is cut off.
    """
    recorded = _read_lock(root)
    code_hashes: Mapping[str, Any] = {}
    if (root / code_lock.NAME).is_file():
        code_hashes = read_json(root / code_lock.NAME)
    current = {PARAMS: settings, code_lock.NAME: code_hashes}
    changed = {name for name, stage in recorded.items() if _has_changed(root, stage, current)}

    # A stage that reads the output of a changed one may run again. The lock has no order.
    while True:
        outputs = {out["path"] for name in changed for out in recorded[name].get("outs", ())}
        readers = set()
        for name, stage in recorded.items():
            paths = [dep["path"] for dep in stage.get("deps", ())]
            if any(path.startswith(output) for path in paths for output in outputs):
                readers.add(name)
        if readers <= changed:
            return changed
        changed |= readers


def _has_changed(
    root: Path, stage: Mapping[str, Any], current: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Return whether the lock of the source, or a parameter of the stage, is another one now.

    Args:
        root: Root of the project.
        stage: The stage as `dvc.lock` has it.
        current: Content of each file of parameters, by its name.
    """
    for dep in stage.get("deps", ()):
        path = root / dep["path"]
        if dep["path"] == SOURCE_LOCK and path.is_file():
            content = path.read_bytes()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != dep.get("md5"):
                return True
    for file, parameters in stage.get("params", {}).items():
        for key, value in parameters.items():
            if get_by_path(current.get(file, {}), key) != value:
                return True
    return False


def copy_lock(root: Path, copy: Path) -> None:
    """Copy `dvc.lock`, so that `restore_lock` can restore it."""
    if (root / LOCK).exists():
        write_text(copy, (root / LOCK).read_text(encoding="utf-8"))


def restore_lock(root: Path, copy: Path) -> bool:
    """Restore `dvc.lock` from a copy if a killed DVC left it half-written.

    Stages that ran after the copy was made are found in DVC's run cache.

    Returns:
        Whether the lock was damaged.
    """
    path = root / LOCK
    if not path.exists() or _valid_stages(path) is not None:
        return False
    if copy.exists():
        write_text(path, copy.read_text(encoding="utf-8"))
    else:
        path.unlink()
    return True


def _read_lock(root: Path) -> dict[str, dict[str, Any]]:
    path = root / LOCK
    if not path.exists():
        return {}
    stages = _valid_stages(path)
    if stages is None:
        raise FreshetError(
            f"{LOCK} was cut off: run `freshet run`, which restores the last complete one"
        )
    return stages


def _valid_stages(path: Path) -> dict[str, Any] | None:
    """Return the stages of the lock by address, or None if the file is cut off."""
    try:
        lock = _parse_yaml(path.read_text(encoding="utf-8", errors="replace"))
    except YAMLError:
        return None

    stages = lock.get("stages") if isinstance(lock, dict) else None
    if not isinstance(stages, dict):
        return None
    for stage in stages.values():
        if not isinstance(stage, dict):
            return None
        # The hash is the last line of an output, so an output without one was cut off.
        outputs = stage.get("outs") or [{}]
        if not all("md5" in output for output in outputs):
            return None
    return stages


@lru_cache(maxsize=1)
def _parse_yaml(text: str) -> Any:
    """Parse the lock. The result is cached for all assets, so callers must not change it."""
    return YAML(typ="safe").load(text)


def remove_stale_notes(root: Path) -> bool:
    """Remove DVC's notes about outputs in use if no running DVC has made any of them.

    DVC ignores notes of processes that have ended, but it only checks whether the process number is
    in use. After a restart of the machine or container another process often has that number, and
    every build would fail with "busy" until a person deletes the file. If a running DVC shares the
    notes, they are kept, because that DVC writes them too.

    Returns:
        Whether notes were removed.
    """
    path = root / NOTES
    if not path.exists():
        return False
    pids = _noted_pids(path)
    if not pids or any(runs_dvc(pid) for pid in pids):
        return False
    path.unlink(missing_ok=True)
    return True


def _noted_pids(path: Path) -> list[int]:
    """Return the process numbers in DVC's notes.

    For notes that were cut off, the result is -1, which no process has.
    """
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        pids = [writer["pid"] for writer in notes.get("write", {}).values()]
        for readers in notes.get("read", {}).values():
            pids += [reader["pid"] for reader in readers]
    except ValueError:
        return [-1]
    return pids


def runs_dvc(pid: int, *others: str) -> bool:
    """Return whether this process runs, and its command line contains "dvc" or one of `others`."""
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except (psutil.Error, ValueError):
        return False
    return any(name in line for name in ("dvc", *others))
