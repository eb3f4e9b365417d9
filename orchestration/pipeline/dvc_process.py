"""DVC as a process: its command line, its environment, its start in a folder; and the last line of a stage below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from model_code.errors import FreshetError
from orchestration.pipeline import code_lock
from orchestration.project import Project

CONFIGS = ("config", "config.local")  # of DVC, in .dvc
BUILD_NAME = "FRESHET_BUILD"  # in the environment of DVC: the run of MLflow that its stages are put below
RECORDER = "FRESHET_RECORDER"  # in the environment of DVC: whoever started it records the stages that have ended


def dvc_command(*arguments: str) -> list[str]:
    """The command line of this environment's DVC."""
    return [sys.executable, "-m", "dvc", *arguments]


def run_dvc(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run DVC and take what it prints; FreshetError with the reason that it gives if it fails."""
    command, variables = dvc_command(*arguments), environment(project)
    done = subprocess.run(command, cwd=project.root, env=variables, capture_output=True, text=True)
    if done.returncode:
        name = next(word for word in arguments if not word.startswith("-"))
        raise FreshetError(f"`dvc {name}` failed: {_reason(done.stderr)}")
    return done


def _reason(stderr: str) -> str:
    """What DVC gives as the error, without what it warns of or advises before and after; all it said if it names none.

    >>> _reason("WARNING: old cache\\nERROR: params.yaml is broken\\nHaving any troubles? Hit us up")
    'params.yaml is broken'
    """
    errors = [line.removeprefix("ERROR:").strip() for line in stderr.splitlines() if line.startswith("ERROR:")]
    return next(iter(errors), stderr.strip())


def environment(project: Project, **extra: str) -> dict[str, str]:
    """This process's environment, in which `python` is this interpreter and the project's code comes first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "FRESHET_STATE": str(project.state), "PYTHONUNBUFFERED": "1", **extra}


def initialise(project: Project) -> None:
    """Make the folder a DVC project if it is none, in git where there is git, and bring its code lock up to date."""
    code_lock.write(project.root)
    if (project.root / ".dvc").is_dir():
        _tell_whether_git(project.root.resolve())
        return
    mode = [] if (project.root / ".git").exists() else ["--no-scm"]
    run_dvc(project, "init", "-q", *mode)


def uses_git(root: Path) -> bool:
    """Whether DVC follows git in `root`: a repository or a folder in one, and no setting of DVC says otherwise."""
    return _in_git(root.resolve()) and not any(_says_no_git(root / ".dvc" / name) for name in CONFIGS)


def _in_git(root: Path) -> bool:
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _tell_whether_git(root: Path) -> None:
    """Without git DVC starts only if its settings say so; a copy of the project's files brings settings made in git."""
    git = _in_git(root)
    shared, local = (_says_no_git(root / ".dvc" / name) for name in CONFIGS)
    if git and local:
        change = ["core.no_scm", "--unset"]
    elif not git and not shared and not local:
        change = ["core.no_scm", "true"]
    else:
        return
    subprocess.run(dvc_command("config", "-q", "--local", *change), cwd=root, check=True)


def _says_no_git(config: Path) -> bool:
    return config.exists() and re.search(r"^\s*no_scm\s*=\s*true\b", config.read_text(), re.I | re.M) is not None


def end_line(address: str) -> str:
    """How the line begins that a stage ends with, by which whoever started DVC knows that it ran."""
    return f"  {address}: done in "
