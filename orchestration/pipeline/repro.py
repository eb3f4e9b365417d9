"""One `dvc repro` for any set of stages: under the project's lock, with this interpreter, its output passed through.

Each stage writes a line when it starts and one when it has ended, so that whoever started DVC can follow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from model_code.errors import FreshetError
from orchestration import parameters
from orchestration.pipeline import dvc_lock, runs
from orchestration.pipeline.stages import TABLE
from orchestration.project import Project

EVENTS_FILE = "FRESHET_EVENTS"  # in the environment of DVC: where stages say that they start and end
CONFIGS = ("config", "config.local")  # of DVC, in .dvc


@dataclass(frozen=True)
class StageEnded:
    """A stage that ran to its end, and its key."""

    address: str
    key: str


def dvc_command(*arguments: str) -> list[str]:
    """The command line of this environment's DVC."""
    return [sys.executable, "-m", "dvc", *arguments]


def environment(project: Project, **extra: str) -> dict[str, str]:
    """This process's environment, in which `python` is this interpreter and the project's code comes first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "FRESHET_STATE": str(project.state), **extra}


def initialise(project: Project) -> None:
    """Make the folder a DVC project if it is none: in git where there is git, without it otherwise."""
    if (project.root / ".dvc").is_dir():
        _tell_whether_git(project.root.resolve())
        return
    mode = [] if (project.root / ".git").exists() else ["--no-scm"]
    subprocess.run(dvc_command("init", "-q", *mode), cwd=project.root, check=True)


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


def repro(
    project: Project, targets: Sequence[str] = (), dagster_run: str | None = None, force: bool = False
) -> Iterator[StageEnded]:
    """Bring `targets` (all stages by default) up to date, yielding each stage that ran as it ends, recorded by then.

    A stage that could not be recorded is kept for the next build, which is said: its output is as good as ever.
    Raises `FreshetError` if a stage fails. A caller that stops listening ends DVC and its stage.
    """
    initialise(project)
    copy = (project.root / ".dvc" / "tmp" if project.home else project.state) / dvc_lock.LOCK
    with project.lock(), _events_file(project) as path:
        if dvc_lock.mend(project.root, copy):
            _say("dvc.lock was half-written by a DVC that was killed: gone back to the last whole one")
        if dvc_lock.remove_stale_notes(project.root):
            _say("notes of a DVC that was killed are removed: they kept outputs busy")
        for folder in remove_unnamed_outputs(project):
            _say(f"{folder} removed: params.yaml no longer names this retriever (DVC's cache keeps what it held)")
        extra = {EVENTS_FILE: str(path)}
        if dagster_run:
            extra["FRESHET_DAGSTER_RUN"] = dagster_run
        command = dvc_command("--wait-for-lock", "repro", *(["--force"] if force else []), *targets)
        recorded = True  # once the store was away, a build does not wait for it again after each stage
        process = subprocess.Popen(command, cwd=project.root, env=environment(project, **extra))
        try:
            for ended in _follow(process, path):
                if recorded:
                    recorded = runs.record_or_say(project)
                yield ended
        finally:
            _stop(process)
        if recorded:
            runs.record_or_say(project)  # what a killed build left, if nothing ran now
    if not process.returncode:
        dvc_lock.keep_copy(project.root, copy)
    else:
        raise FreshetError(f"`dvc repro` failed with exit code {process.returncode}; the stage's own message is above")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def _events_file(project: Project) -> Iterator[Path]:
    path = project.state / f"events.{os.getpid()}.jsonl"
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _follow(process: subprocess.Popen[bytes], path: Path) -> Iterator[StageEnded]:
    told, running = 0, True
    while running:
        try:
            process.wait(timeout=0.3)
            running = False
        except subprocess.TimeoutExpired:
            pass
        for ended in read_ended(path, running)[told:]:
            told += 1
            yield ended


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def remove_unnamed_outputs(project: Project) -> list[Path]:
    """Delete outputs of what `params.yaml` no longer names; returns the folders, relative to the root.

    The comparison reads the folders above them: a build depends on the settings, not on what was built before. A
    retriever that comes back is restored from DVC's cache. To be called under the project's lock.
    """
    settings = parameters.load(project.params_file)
    named = {"artifacts/evaluate": settings.built}
    folders = list(dict.fromkeys(Path(stage.output).parent for stage in TABLE if stage.each))
    removed = [
        path
        for folder in folders
        for path in sorted((project.root / folder).glob("*"))
        if path.name not in named.get(folder.as_posix(), settings.retrievers)
        and path.is_dir()
        and not path.is_symlink()
    ]
    for path in removed:
        shutil.rmtree(path)
    return [path.relative_to(project.root) for path in removed]


def followed() -> bool:
    """Whether somebody follows: whoever does also records the stages that have ended."""
    return EVENTS_FILE in os.environ


def write_start(address: str) -> None:
    """Say that a stage starts, which tells that DVC has recorded all before it; nothing if nobody follows."""
    _append({"started": address})


def write_end(ended: StageEnded) -> None:
    """Say that a stage has ended; nothing if nobody follows."""
    _append({"ended": asdict(ended)})


def _append(event: dict[str, object]) -> None:
    name = os.environ.get(EVENTS_FILE)
    if name:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


def read_ended(path: Path, running: bool) -> list[StageEnded]:
    """The stages that have ended so far, in their order; while DVC is `running`, only those it has recorded too.

    DVC writes a stage to `dvc.lock` after the stage's process has ended, so the last one of a running DVC may be
    missing there: it counts once another stage has started.
    """
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    settled = events[:-1] if running else events
    return [StageEnded(**event["ended"]) for event in settled if "ended" in event]
