"""A temporary project to retrain in, so that the user's settings, artifacts and `dvc.lock` stay as they are.

It has its own copy of the code, and settings that differ in where the documents come from; runs, models, checkpoints
and live collections are those of the project that it belongs to. DVC's cache is shared.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from orchestration import parameters
from orchestration.project import Project
from orchestration.repro import dvc_command, environment
from orchestration.retraining.start import START, begin_with

CODE = ("model_code", "orchestration", "assets")
FILES = ("params.yaml", "dvc.yaml", "pyproject.toml")
OWN = {*CODE, *FILES, "artifacts", "corpus.lock.json", "dvc.lock", "live", "snapshot", START}
SETTINGS = (  # what is live was accepted once: nothing is merged, cut off, held back or quarantined again
    "corpus.source=snapshot",
    "corpus.path=snapshot",
    "corpus.limit=null",
    "corpus.merge_duplicates=none",
    "corpus.keep_title_only=true",
    "corpus.quarantine_limit=0.0",
    "corpus.parts={by: none}",
)


def make_workspace(project: Project, folder: Path, snapshot: Path, start: Path | None = None) -> Project:
    """A project at `folder` that builds from `snapshot`; what a cut-off retrain left there is used again.

    start: the encoder whose weights training begins with; None: the base.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in CODE:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(project.root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (project.root / name).is_file():
            shutil.copyfile(project.root / name, folder / name)
    _link_the_rest(project.root, folder)
    if snapshot.resolve() != (folder / "snapshot").resolve():
        shutil.copytree(snapshot, folder / "snapshot", dirs_exist_ok=True)
    parameters.assign(folder / "params.yaml", SETTINGS)
    if start is not None:
        begin_with(start, folder)
    workspace = Project(folder, home=project.root)
    _share_cache(project, workspace)
    return workspace


def _link_the_rest(root: Path, folder: Path) -> None:
    """Settings may name folders of the project, such as a base encoder's: they are found under the same names."""
    for path in root.iterdir():
        if path.name not in OWN and not path.name.startswith(".") and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def _share_cache(project: Project, workspace: Project) -> None:
    def dvc(*arguments: str) -> None:
        command = dvc_command(*arguments)
        subprocess.run(command, cwd=workspace.root, env=environment(workspace), check=True)

    if not (workspace.root / ".dvc").is_dir():
        dvc("init", "-q", "--no-scm")
    dvc("config", "-q", "cache.dir", str(project.root / ".dvc" / "cache"))
