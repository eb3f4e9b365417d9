"""`freshet backup` and `freshet restore`: copy a project's data while the project is in use.

    DIR/live/...            generations, as hard links if the backup is on the same disk, and the
                            files that name the current generations
    DIR/live/ledger.sqlite  copy of the ledger by SQLite's backup function
    DIR/params.yaml ...     settings and lock files, and other files that `freshet init` wrote

The ledger, the log of changes, is copied after the generations, the snapshots of the index. So the
copy has all events that the generations contain.

Models, artifacts and MLflow runs are not copied, because `freshet run` and `freshet register` can
make them again. The state folder `.freshet` is not copied either.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from model_code.collection.backup.repair import find_damage
from model_code.collection.generations.generation_store import (
    CURRENT,
    GENERATIONS,
    default_retriever,
    retrievers,
)
from model_code.collection.index.project_ledger import WRITER_LOCK, ledger_file
from model_code.errors import FreshetError
from model_code.files import fsync, fsync_tree
from model_code.project import Project, file_lock

# Name of the ledger's copy in the folder `live` of a backup.
LEDGER = "ledger.sqlite"

# Names of the files in the project's root that a backup copies.
SETTINGS = (
    "params.yaml",
    "dvc.yaml",
    "dvc.lock",
    "corpus.lock.json",
    "judgements.jsonl",
    "sources.json",
)
# Name of the file with a hash of each stage's code. A project without it holds the code itself.
CODE_LOCK = "code.lock.json"
# Names of further files that `freshet init` writes to the root. A restored project needs the first
# one to build, and Dagster's command line needs the second one.
PROJECT_FILES = (CODE_LOCK, "pyproject.toml", ".gitignore", ".dvcignore")


def backup(project: Project, target: Path) -> str | None:
    """Copy the live collections, the ledger and the settings of a project to a new folder.

    The project may be in use. Changes can be recorded in the ledger at any time. They are made
    searchable only after the generations, the snapshots of the index, are copied. This takes little
    time, because files are linked and not copied. The folder is written under a temporary name, and
    renamed when it is complete.

    Args:
        project: The project.
        target: Folder to create.

    Returns:
        A sentence about what the user still has to do, if the ledger is on a server. None if
        nothing is left to do.

    Raises:
        FreshetError: If the folder exists, or nothing is live yet.
    """
    if target.exists():
        raise FreshetError(f"{target} exists: name a new folder, such as {target}-2")
    # This call raises an error if nothing is live yet.
    default_retriever(project.live)

    staging = target.with_name(f".{target.name}.making")
    shutil.rmtree(staging, ignore_errors=True)
    live = staging / "live"
    live.mkdir(parents=True)
    with file_lock(project.live / WRITER_LOCK):
        # Generations are snapshots of the index, which never change. The names of unfinished ones
        # begin with a dot.
        for name in retrievers(project.live):
            shutil.copytree(
                project.live / name / GENERATIONS,
                live / name / GENERATIONS,
                copy_function=link,
                ignore=shutil.ignore_patterns(".*"),
            )
            shutil.copyfile(project.live / name / CURRENT, live / name / CURRENT)
        shutil.copyfile(project.live / CURRENT, live / CURRENT)

    copied_names = list(SETTINGS)
    # In a clone, files of these names belong to the code and not to the project.
    if (project.root / CODE_LOCK).is_file():
        copied_names += PROJECT_FILES
    for name in copied_names:
        if (project.root / name).is_file():
            shutil.copyfile(project.root / name, staging / name)
    # The ledger is copied last, so that it has all changes that the generations contain.
    advice = _copy_ledger(project, live / LEDGER)

    fsync_tree(staging)
    staging.rename(target)
    fsync(target.parent)
    return advice


def restore(source: Path, root: Path) -> Project:
    """Copy a backup to a project that has no live collection and no ledger.

    Settings and lock files that the project has already are not replaced.

    Args:
        source: Folder of the backup.
        root: Root of the project.

    Returns:
        The restored project.

    Raises:
        FreshetError: If `source` is not a backup, the project has a live collection or a ledger, or
            the restored files are damaged.
    """
    project = Project(root)
    if not (source / "live").is_dir():
        raise FreshetError(f"{source} is no backup: it has no folder live")
    ledger_path = ledger_file(project)
    _require_absent(project.live)
    if ledger_path is not None:
        _require_absent(ledger_path)

    staging = root / ".live.making"
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source / "live", staging)
    if ledger_path is not None:
        _place_ledger(staging, ledger_path, project)
    for name in (*SETTINGS, *PROJECT_FILES):
        if (source / name).is_file() and not (root / name).exists():
            shutil.copyfile(source / name, root / name)

    fsync_tree(staging)
    staging.rename(project.live)
    fsync(root)
    first_damage = next(find_damage(project), None)
    if first_damage is not None:
        raise FreshetError(first_damage)
    return project


def link(source: str | Path, target: str | Path) -> None:
    """Create a hard link to a file, or copy the file if a link is impossible.

    Args:
        source: File that never changes, so that a link is as safe as a copy.
        target: Path of the link or the copy.
    """
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        # The target is on another disk, or the file system does not support hard links.
        shutil.copyfile(source, target)


def _copy_ledger(project: Project, target: Path) -> str | None:
    """Copy a SQLite ledger.

    Returns:
        None, or a sentence about what the user has to do if the ledger is on a server.
    """
    path = ledger_file(project)
    if path is None:
        return "the ledger is on a server: dump it now, with its own tool such as pg_dump"
    if path.is_file():
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    return None


def _place_ledger(staging: Path, ledger_path: Path, project: Project) -> None:
    """Move the ledger of a backup to the path that the project's settings name.

    A backup has the ledger in the folder `live`. The project may keep it elsewhere, or there under
    another name.

    Args:
        staging: Copy of the backup's folder `live`, which becomes that of the project.
        ledger_path: File of the project's ledger.
        project: The project.
    """
    if not (staging / LEDGER).is_file():
        return
    target = ledger_path
    if ledger_path.parent == project.live:
        target = staging / ledger_path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(staging / LEDGER, target)


def _require_absent(path: Path) -> None:
    """Raise an error if a path exists, because a restore does not replace live data."""
    if path.exists():
        raise FreshetError(
            f"{path} is there: move it away first, and delete it once the backup has what you miss"
        )
