"""Run DVC, and read and repair its files.

DVC records the hash of each stage's output in `dvc.lock`. Dagster shows this hash as the data
version of the asset. If DVC is killed, `dvc.lock` may be half-written, and DVC's notes about
outputs in use may remain. Both are repaired before the next build.
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
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from model_code.errors import FreshetError
from model_code.files import read_json, write_text
from model_code.project import PARAMS, Project
from model_code.stages.stage import Stage
from orchestration.parameters import get_by_path
from orchestration.pipeline import code_lock, dvc_file

# DVC's configuration files, in the folder `.dvc`.
CONFIG_FILES = ("config", "config.local")
# Name of the environment variable with the name of the build. The run of the build in MLflow is the
# parent of the runs of its stages.
BUILD_NAME = "FRESHET_BUILD"
# Name of the environment variable which tells a stage that the process that started DVC records the
# stage's run. Without the variable, the stage records its run itself.
RECORDER = "FRESHET_RECORDER"
LOCK = "dvc.lock"
# Path of the file in which DVC notes which process reads or writes which output.
NOTES = Path(".dvc", "tmp", "rwlock")

# Name of the file with the hash of the source's content. The stage `corpus` depends on it.
SOURCE_LOCK = "corpus.lock.json"


def command_line(*arguments: str) -> list[str]:
    """Return a command line of the DVC in this environment."""
    return [sys.executable, "-m", "dvc", *arguments]


def run_dvc(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run DVC in the project, and capture what it prints.

    Raises:
        FreshetError: If DVC fails. The message contains DVC's reason.
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
    """Return the error in DVC's output, without warnings and advice.

    If no line is marked as an error, the whole output is returned.

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
    # The commands in `dvc.yaml` begin with `python`, which is looked for in these folders.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    variables["PATH"] = os.pathsep.join(folders)
    variables["FRESHET_STATE"] = str(project.state)
    variables["PYTHONUNBUFFERED"] = "1"
    variables.update(extra)
    return variables


def initialise(project: Project) -> None:
    """Make the project's folder a DVC project if it is not one yet, and update its DVC files.

    These files are `dvc.yaml` and `code.lock.json`, the hashes of each stage's code. In a git
    repository, DVC is set up to work with git, and otherwise without it.
    """
    code_lock.write(project.root)
    dvc_file.update(project.root)
    # `dvc init` writes its configuration file last. If the file exists, `dvc init` was complete.
    if (project.root / ".dvc/config").is_file():
        _configure_git(project.root.resolve())
        return
    options = [] if (project.root / ".git").exists() else ["--no-scm"]
    if (project.root / ".dvc").exists():
        # The folder `.dvc` exists without its configuration: an earlier `dvc init` was interrupted.
        options.append("--force")
    run_dvc(project, "init", "-q", *options)


def uses_git(root: Path) -> bool:
    """Return whether DVC uses git: in a git repository, unless DVC's configuration forbids it."""
    if not in_git(root.resolve()):
        return False
    return not any(_forbids_git(root / ".dvc" / name) for name in CONFIG_FILES)


def in_git(root: Path) -> bool:
    """Return whether a folder is a git repository or inside one."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _configure_git(root: Path) -> None:
    """Set in DVC's configuration whether the project is in a git repository.

    A project that was copied or moved may have left or entered a repository. Outside a repository,
    DVC starts only with the setting `core.no_scm`.
    """
    # The shared file belongs to the user. Only the local file is changed.
    shared_config, local_config = (root / ".dvc" / name for name in CONFIG_FILES)
    is_forbidden_locally = _forbids_git(local_config)
    is_forbidden = is_forbidden_locally or _forbids_git(shared_config)
    if in_git(root):
        if not is_forbidden_locally:
            return
        change = ["core.no_scm", "--unset"]
    else:
        if is_forbidden:
            return
        change = ["core.no_scm", "true"]
    subprocess.run(command_line("config", "-q", "--local", *change), cwd=root, check=True)


def _forbids_git(config: Path) -> bool:
    """Return whether a configuration file of DVC sets `core.no_scm`, so that DVC uses no git."""
    if not config.exists():
        return False
    pattern = r"^\s*no_scm\s*=\s*true\b"
    return re.search(pattern, config.read_text(), re.IGNORECASE | re.MULTILINE) is not None


def stage_end_prefix(address: str) -> str:
    """Return the prefix of the line that a stage prints last.

    A build recognises by this line that the stage ran and was not skipped.
    """
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
    """Return the addresses of all stages in `dvc.lock`, such as `train@hce`.

    Raises:
        FreshetError: If the file is cut off.
    """
    return set(_read_lock(root))


def changed_stages(root: Path, settings: Mapping[str, Any]) -> set[str]:
    """Return the addresses of the stages that run again because of a changed setting or source.

    This takes milliseconds, because only `dvc.lock` and small files are read. A change of the code
    is noticed only by `code.lock.json`, so not in a clone. `dvc status` is slower, but it also
    compares the code and the outputs.

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

    # A stage may run again if it reads the output of a changed stage. The stages in `dvc.lock` have
    # no order, so this is repeated until no further stage is found.
    while True:
        readers = _readers_of(changed, recorded)
        if readers <= changed:
            return changed
        changed |= readers


def _readers_of(addresses: set[str], recorded: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the addresses of the stages that read an output of the given stages.

    Args:
        addresses: Addresses of stages in `dvc.lock`.
        recorded: The entries of all stages in `dvc.lock`, by address.
    """
    outputs = []
    for address in addresses:
        outputs.extend(
            PurePosixPath(output["path"]) for output in recorded[address].get("outs", ())
        )

    readers = set()
    for address, entry in recorded.items():
        for dependency in entry.get("deps", ()):
            path = PurePosixPath(dependency["path"])
            # A stage reads an output, a part of it, or a folder with the outputs of several stages.
            if any(
                path.is_relative_to(output) or output.is_relative_to(path) for output in outputs
            ):
                readers.add(address)
    return readers


def _has_changed(
    root: Path, stage: Mapping[str, Any], current: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Return whether the source or a parameter of a stage has changed since the stage ran.

    Args:
        root: Root of the project.
        stage: The entry of the stage in `dvc.lock`.
        current: Present content of each file of parameters, by the name of the file.
    """
    for dependency in stage.get("deps", ()):
        path = root / dependency["path"]
        if dependency["path"] == SOURCE_LOCK and path.is_file():
            # DVC records files by their MD5.
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            if digest != dependency.get("md5"):
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

    Stages that ran after the copy was made need not run again: DVC finds them in its run cache.

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
    """Return the entries of the stages in `dvc.lock`, by address; empty if no stage ever ran.

    Raises:
        FreshetError: If the file is cut off.
    """
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
    """Return the entries of the stages in `dvc.lock`, by address; None if the file is cut off."""
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
        # The hash is the last line of the entry of an output. Without a hash, the entry is cut off.
        outputs = stage.get("outs") or [{}]
        if not all("md5" in output for output in outputs):
            return None
    return stages


@lru_cache(maxsize=1)
def _parse_yaml(text: str) -> Any:
    """Parse the text of `dvc.lock`.

    The result is cached because every asset reads it. Callers must not change it.
    """
    return YAML(typ="safe").load(text)


def remove_stale_notes(root: Path) -> bool:
    """Remove DVC's notes about outputs in use, unless a running DVC made any of them.

    DVC ignores the notes of a process that has ended, but it only checks whether the process id is
    in use. After a restart of the machine or container, another process often has this id. Every
    build would then fail with "busy" until a person deletes the file. The file is kept if it has
    notes of a running DVC.

    Returns:
        Whether notes were removed.
    """
    path = root / NOTES
    if not path.exists():
        return False
    pids = _noted_pids(path)
    is_in_use = any(runs_dvc(pid) for pid in pids)
    if not pids or is_in_use:
        return False
    path.unlink(missing_ok=True)
    return True


def _noted_pids(path: Path) -> list[int]:
    """Return the process ids in DVC's notes.

    If the file was cut off, the only id is -1, which no process has.
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
    """Return whether a process runs whose command line contains "dvc" or one of `others`."""
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except (psutil.Error, ValueError):
        return False
    return any(name in line for name in ("dvc", *others))
