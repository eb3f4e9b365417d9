"""What a retrain trains on, documents that are found now and judged queries that still have one,
and where: in a temporary project, so that the user's settings, artifacts and `dvc.lock` stay as
they are.

It has its own copy of the code, and settings that differ in where the documents come from; runs,
models, checkpoints and live collections are those of the project that it belongs to. DVC's cache is
shared.
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

SNAPSHOT = "snapshot"  # the folder of the documents to train on
FILES = ("params.yaml", "dvc.yaml", "pyproject.toml")
OWN = {
    *code_lock.PACKAGES,
    code_lock.NAME,
    *FILES,
    "artifacts",
    "corpus.lock.json",
    "dvc.lock",
    "live",
    SNAPSHOT,
}
# settings, of whichever group, that name a hub's model or a folder
MODELS = ("base", "start", "model")
# what is live was accepted once: nothing is merged, cut off, held back or quarantined again
SETTINGS = (
    "corpus.source=snapshot",
    f"corpus.path={SNAPSHOT}",
    "corpus.limit=null",
    "corpus.merge_duplicates=none",
    "corpus.quarantine_limit=0.0",
)


def make_workspace(
    workspace: Project, write_snapshot: Callable[[Path], Any], share_cache: bool = True
) -> None:
    """Make a workspace that builds from what `write_snapshot` puts into a folder; one that is there
    is left as it is.

    So every step of a retrain has the code and settings of its start, whatever is edited meanwhile.
    share_cache: what is built goes to the cache of its home, and is not repeated; else it goes with
    the folder.
    """
    folder, home = workspace.root, workspace.home or workspace.root
    if not folder.is_dir():
        aside = folder.with_name(f".{folder.name}.making")
        shutil.rmtree(aside, ignore_errors=True)
        _fill(home, aside, write_snapshot)
        replace_folder(aside, folder)
    if share_cache:
        if not (folder / ".dvc").is_dir():
            run_dvc(workspace, "init", "-q", "--no-scm")
        run_dvc(workspace, "config", "-q", "cache.dir", str(home / ".dvc" / "cache"))


def _fill(root: Path, folder: Path, write_snapshot: Callable[[Path], Any]) -> None:
    folder.mkdir(parents=True)
    code = code_lock.code_root(root)
    for name in code_lock.PACKAGES:
        shutil.copytree(code / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (root / name).is_file():
            shutil.copyfile(root / name, folder / name)
    if code != root:
        dvc_file.write(folder / "dvc.yaml")
    # settings may name folders, such as a base encoder's, which lie as before then
    for path in root.iterdir():
        if (
            path.name not in OWN
            and not path.name.startswith(".")
            and not (folder / path.name).exists()
        ):
            (folder / path.name).symlink_to(path)
    write_snapshot(folder / SNAPSHOT)
    parameters.write_overrides(folder / "params.yaml", SETTINGS)
    _name_in_full(root, folder)


def _name_in_full(root: Path, folder: Path) -> None:
    """Folders of models that only lie where the settings say as seen from `root`, hidden ones and
    those beside it.
    """
    named = flatten(parameters.read_mapping(folder / "params.yaml"))
    models = {
        name: value for name, value in named.items() if name.rpartition(".")[2] in MODELS and value
    }
    beyond = {name: root / value for name, value in models.items() if not (folder / value).exists()}
    full = [
        f"{name}={json.dumps(str(path.resolve()))}"
        for name, path in beyond.items()
        if path.is_dir()
    ]
    parameters.write_overrides(folder / "params.yaml", full)
