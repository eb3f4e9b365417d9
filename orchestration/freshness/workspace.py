"""Make the workspace of a retrain: a project that builds from a snapshot of the live documents.

A retrain builds in a workspace so that the user's settings, artifacts and `dvc.lock` are not
changed. A workspace has its own copies of the code and of the settings. Only the settings of the
source differ: they name the snapshot. Runs, models, checkpoints and live collections belong to the
project that the workspace was made for.
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

# Name of the workspace's folder with the documents to train on.
SNAPSHOT = "snapshot"
# Files that are copied from the project.
PROJECT_FILES = ("params.yaml", "dvc.yaml", "pyproject.toml")
# Names in the project's root folder that a workspace never links to, because it has its own files
# and folders of these names.
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
# Keys of settings, in any group, whose value names a model on the hub or a model's folder.
MODEL_SETTINGS = ("base", "start", "model")
# Settings with which a workspace reads the snapshot, the exported live documents. All of them were
# accepted before, so none is merged, left out or quarantined.
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
    """Make a workspace, the project in which a retrain builds, unless it exists already.

    An existing workspace is not changed. Every step of a retrain therefore uses the code and the
    settings from the start of the retrain, even if a person edits them meanwhile.

    Args:
        workspace: The workspace. Its `home` is the project that it is made for.
        write_snapshot: Function that writes the documents to train on to a folder.
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
    """Fill the folder of a new workspace with code, settings and the documents to train on."""
    folder.mkdir(parents=True)
    code_root = code_lock.code_root(project_root)
    for package in code_lock.PACKAGES:
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(code_root / package, folder / package, ignore=without_caches)
    for name in PROJECT_FILES:
        if (project_root / name).is_file():
            shutil.copyfile(project_root / name, folder / name)

    # The dvc.yaml of a project that uses the installed code names its code lock, a file with the
    # version of the code, as a dependency. A workspace has a copy of the code and needs a dvc.yaml
    # that names this copy.
    if code_root != project_root:
        dvc_file.write(folder / "dvc.yaml")

    _link_folders_of_settings(project_root, folder)
    write_snapshot(folder / SNAPSHOT)
    parameters.write_overrides(folder / "params.yaml", SNAPSHOT_SETTINGS)
    _make_model_paths_absolute(project_root, folder)


def _link_folders_of_settings(project_root: Path, folder: Path) -> None:
    """Link the other files and folders of the project, because settings may name them.

    An example is a setting with the relative path of a base encoder's folder.
    """
    for path in project_root.iterdir():
        is_hidden = path.name.startswith(".")
        exists_already = (folder / path.name).exists()
        if is_hidden or exists_already or path.name in OWN_NAMES:
            continue
        (folder / path.name).symlink_to(path)


def _make_model_paths_absolute(project_root: Path, folder: Path) -> None:
    """Rewrite relative paths of models that the workspace does not contain as absolute paths.

    A workspace links to the other folders of its project. It does not link to hidden folders and to
    folders outside the project.
    """
    settings = flatten(parameters.read_mapping(folder / "params.yaml"))
    assignments = []
    for name, value in settings.items():
        # The name is a path in the settings, such as retrievers.hce.training.start.
        key = name.rpartition(".")[2]
        if key not in MODEL_SETTINGS or not value:
            continue
        is_in_workspace = (folder / value).exists()
        if is_in_workspace:
            continue
        # A value that is not a folder is the name of a model on the hub and stays as it is.
        path = project_root / value
        if path.is_dir():
            assignments.append(f"{name}={json.dumps(str(path.resolve()))}")
    parameters.write_overrides(folder / "params.yaml", assignments)
