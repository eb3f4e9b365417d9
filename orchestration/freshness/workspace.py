"""Make the workspace of a retrain: a project that builds from a snapshot of the live documents.

The user's settings, artifacts and `dvc.lock` stay as they are. A workspace has its own copy of the
code, and settings that differ in where the documents come from. Runs, models, checkpoints and live
collections belong to the project that the workspace was made for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_code.files import replace_folder
from model_code.project import Project
from orchestration import parameters
from orchestration.parameters import flatten
from orchestration.pipeline import code_lock, dvc_file
from orchestration.pipeline.dvc import run_dvc

# The folder of the documents to train on.
SNAPSHOT = "snapshot"
# Files that are copied from the project.
PROJECT_FILES = ("params.yaml", "dvc.yaml", "pyproject.toml")
# Names in the project's root that a workspace never links to, because it has or makes its own.
OWN_NAMES = {
    *code_lock.PACKAGES,
    code_lock.NAME,
    *PROJECT_FILES,
    "artifacts",
    "corpus.lock.json",
    "dvc.lock",
    "live",
    SNAPSHOT,
}
# Settings of any group that name a model of a hub or a folder.
MODEL_SETTINGS = ("base", "start", "model")
# Live documents were accepted before, so none is merged, left out or quarantined.
SNAPSHOT_SETTINGS = (
    "corpus.source=snapshot",
    f"corpus.path={SNAPSHOT}",
    "corpus.limit=null",
    "corpus.merge_duplicates=none",
    "corpus.quarantine_limit=0.0",
)


def make_workspace(
    workspace: Project, write_snapshot: Callable[[Path], Any], share_cache: bool = True
) -> None:
    """Make a workspace, unless it exists already.

    A workspace is left as it is once it exists. Every step of a retrain therefore uses the code and
    the settings from the start of the retrain, whatever is edited meanwhile.

    Args:
        workspace: The workspace; its `home` is the project that it is made for.
        write_snapshot: Writes the documents to train on to a folder.
        share_cache: Whether built artifacts go to the DVC cache of the project, so that they are
            not built twice. Otherwise they are deleted with the workspace.
    """
    folder = workspace.root
    home = workspace.home or workspace.root

    if not folder.is_dir():
        staging = folder.with_name(f".{folder.name}.making")
        shutil.rmtree(staging, ignore_errors=True)
        _fill(home, staging, write_snapshot)
        replace_folder(staging, folder)

    if share_cache:
        if not (folder / ".dvc").is_dir():
            run_dvc(workspace, "init", "-q", "--no-scm")
        run_dvc(workspace, "config", "-q", "cache.dir", str(home / ".dvc" / "cache"))


def _fill(project_root: Path, folder: Path, write_snapshot: Callable[[Path], Any]) -> None:
    """Fill a new workspace with code, settings and documents."""
    folder.mkdir(parents=True)
    code_root = code_lock.code_root(project_root)
    for package in code_lock.PACKAGES:
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(code_root / package, folder / package, ignore=without_caches)
    for name in PROJECT_FILES:
        if (project_root / name).is_file():
            shutil.copyfile(project_root / name, folder / name)

    # The dvc.yaml of a project that uses the installed code depends on its code lock. A workspace
    # has the code itself.
    if code_root != project_root:
        dvc_file.write(folder / "dvc.yaml")

    _link_folders_of_settings(project_root, folder)
    write_snapshot(folder / SNAPSHOT)
    parameters.write_overrides(folder / "params.yaml", SNAPSHOT_SETTINGS)
    _make_model_paths_absolute(project_root, folder)


def _link_folders_of_settings(project_root: Path, folder: Path) -> None:
    """Link what else is in the project, because settings may name it by a relative path.

    An example is the folder of a base encoder.
    """
    for path in project_root.iterdir():
        is_hidden = path.name.startswith(".")
        if is_hidden or path.name in OWN_NAMES or (folder / path.name).exists():
            continue
        (folder / path.name).symlink_to(path)


def _make_model_paths_absolute(project_root: Path, folder: Path) -> None:
    """Rewrite settings that name a model's folder outside the workspace as absolute paths.

    These are hidden folders and folders beside the project, which are not linked.
    """
    settings = flatten(parameters.read_mapping(folder / "params.yaml"))
    assignments = []
    for name, value in settings.items():
        key = name.rpartition(".")[2]
        if key not in MODEL_SETTINGS or not value or (folder / value).exists():
            continue
        # A value that is no folder is the name of a model on the hub.
        path = project_root / value
        if path.is_dir():
            assignments.append(f"{name}={json.dumps(str(path.resolve()))}")
    parameters.write_overrides(folder / "params.yaml", assignments)
