"""DVC: its process, what it leaves in files, and the last line of a stage below it.

The hash of an output in `dvc.lock` is the asset's data version. A DVC that was killed may leave
this file half-written and its notes stale; both are mended before the next build.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration.pipeline import code_lock

CONFIGS = ("config", "config.local")  # of DVC, in .dvc
# in the environment of DVC: the run of MLflow that its stages are put below
BUILD_NAME = "FRESHET_BUILD"
# in the environment of DVC: whoever started it records the stages that have ended
RECORDER = "FRESHET_RECORDER"
LOCK = "dvc.lock"
NOTES = Path(".dvc", "tmp", "rwlock")  # which process reads or writes which output


def command_line(*arguments: str) -> list[str]:
    """The command line of this environment's DVC."""
    return [sys.executable, "-m", "dvc", *arguments]


def run_dvc(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run DVC and take what it prints; FreshetError with the reason that it gives if it fails."""
    command, variables = command_line(*arguments), environment(project)
    done = subprocess.run(command, cwd=project.root, env=variables, capture_output=True, text=True)
    if done.returncode:
        name = next(word for word in arguments if not word.startswith("-"))
        raise FreshetError(f"`dvc {name}` failed: {_reason(done.stderr)}")
    return done


def _reason(stderr: str) -> str:
    """What DVC gives as the error, without what it warns of or advises before and after; all it
    said if it names none.

    >>> _reason("WARNING: old cache\\nERROR: params.yaml is broken\\nHaving any troubles? Hit us up")
    'params.yaml is broken'
    """
    errors = [
        line.removeprefix("ERROR:").strip()
        for line in stderr.splitlines()
        if line.startswith("ERROR:")
    ]
    return next(iter(errors), stderr.strip())


def environment(project: Project, **extra: str) -> dict[str, str]:
    """This process's environment, in which `python` is this interpreter and the project's code
    comes first.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FRESHET_STATE": str(project.state),
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def initialise(project: Project) -> None:
    """Make the folder a DVC project if it is none, in git where there is git, and bring its code
    lock up to date.
    """
    code_lock.write(project.root)
    if (project.root / ".dvc").is_dir():
        _tell_whether_git(project.root.resolve())
        return
    mode = [] if (project.root / ".git").exists() else ["--no-scm"]
    run_dvc(project, "init", "-q", *mode)


def uses_git(root: Path) -> bool:
    """Whether DVC follows git in `root`: a repository or a folder in one, and no setting of DVC
    says otherwise.
    """
    return in_git(root.resolve()) and not any(
        _says_no_git(root / ".dvc" / name) for name in CONFIGS
    )


def in_git(root: Path) -> bool:
    """Whether a folder is a repository of git, or in one."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _tell_whether_git(root: Path) -> None:
    """Bring DVC's settings in line with git, without which it starts only if they say so: they may
    have been copied.
    """
    git = in_git(root)
    shared, local = (_says_no_git(root / ".dvc" / name) for name in CONFIGS)
    if git and local:
        change = ["core.no_scm", "--unset"]
    elif not git and not shared and not local:
        change = ["core.no_scm", "true"]
    else:
        return
    subprocess.run(command_line("config", "-q", "--local", *change), cwd=root, check=True)


def _says_no_git(config: Path) -> bool:
    return (
        config.exists()
        and re.search(r"^\s*no_scm\s*=\s*true\b", config.read_text(), re.I | re.M) is not None
    )


def stage_end_prefix(address: str) -> str:
    """How the line begins that a stage ends with, by which whoever started DVC knows that it ran."""
    return f"  {address}: done in "


def output_version(root: Path, stage: Stage) -> str:
    """The MD5 that DVC recorded for `stage`'s output; raises `FreshetError` if it never ran."""
    for output in _read(root).get(stage.address, {}).get("outs", []):
        if output["path"] == stage.output:
            return str(output["md5"])
    raise FreshetError(
        f"dvc.lock has no output of {stage.address}: run it first (`freshet run {stage.address}`)"
    )


def stages_that_ran(root: Path) -> set[str]:
    """The addresses of all stages that `dvc.lock` knows; raises `FreshetError` if it is cut off."""
    return set(_read(root))


def copy_lock(root: Path, copy: Path) -> None:
    """Keep the lock as it is now, so that `restore_lock` can go back to it."""
    if (root / LOCK).exists():
        write_text(copy, (root / LOCK).read_text(encoding="utf-8"))


def restore_lock(root: Path, copy: Path) -> bool:
    """Put `copy` in the place of a lock that a killed DVC left half-written (it writes it in
    place); whether it did.

    What ran since the copy was made is found again in DVC's run cache.
    """
    path = root / LOCK
    if not path.exists() or _stages(path) is not None:
        return False
    if copy.exists():
        write_text(path, copy.read_text(encoding="utf-8"))
    else:
        path.unlink()
    return True


def _read(root: Path) -> dict[str, dict[str, list[dict[str, str]]]]:
    path = root / LOCK
    stages = _stages(path) if path.exists() else {}
    if stages is None:
        raise FreshetError(
            f"{LOCK} is not whole: run `freshet run`, which goes back to the last one that was"
        )
    return stages


def _stages(path: Path) -> dict[str, Any] | None:
    """Those of the lock; None if it is not whole."""
    try:
        lock = _parse(path.read_text(encoding="utf-8", errors="replace"))
    except YAMLError:
        return None
    stages = lock.get("stages") if isinstance(lock, dict) else None
    if not isinstance(stages, dict) or not all(
        isinstance(stage, dict) for stage in stages.values()
    ):
        return None
    hashed = all("md5" in out for stage in stages.values() for out in stage.get("outs") or [{}])
    return stages if hashed else None


@lru_cache(maxsize=1)
def _parse(text: str) -> Any:
    """The lock, to be read only; remembered, as every asset asks."""
    return YAML(typ="safe").load(text)


def remove_stale_notes(root: Path) -> bool:
    """Remove the notes below `root` if no DVC that runs has made any of them; whether there were
    such.

    DVC passes over notes of processes that are gone, but asks only whether the number is in use.
    After a restart of the machine or the container it often is, by something else, and every build
    would end in "busy" until a person deletes the file. Notes that a running DVC shares stay as
    they are: it writes them, too.
    """
    path = root / NOTES
    if not path.exists():
        return False
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        processes = [writer["pid"] for writer in notes.get("write", {}).values()]
        processes += [
            reader["pid"] for readers in notes.get("read", {}).values() for reader in readers
        ]
    except ValueError:  # cut off while they were written, which DVC refuses to read
        processes = [-1]
    if not processes or any(map(runs_dvc, processes)):
        return False
    path.unlink(missing_ok=True)
    return True


def runs_dvc(pid: int, *others: str) -> bool:
    """Whether a process runs under this number whose command line names DVC, or one of `others`."""
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except (psutil.Error, ValueError):
        return False
    return any(name in line for name in ("dvc", *others))
