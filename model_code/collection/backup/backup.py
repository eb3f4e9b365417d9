"""`freshet backup` and `freshet restore`: all that cannot be made again, copied while the project
works.

    DIR/live/...            pointers and generations, hard links where the disk is the same
    DIR/live/ledger.sqlite  by SQLite's own backup, after the generations: so the log knows every event that these name
    DIR/params.yaml ...     settings and locks

Models, artifacts and MLflow's runs are made again by `freshet run` and `freshet register`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from model_code.collection.backup.repair import problems
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

LEDGER = "ledger.sqlite"
SETTINGS = ("params.yaml", "dvc.yaml", "dvc.lock", "corpus.lock.json")


def backup(project: Project, target: Path) -> str | None:
    """Copy the project's live collections, ledger and settings to the new folder `target`, whole or
    not at all.

    Documents may arrive meanwhile; what is to be searched waits for as long as links take. Returns
    what is left to do where the ledger is on a server. FreshetError if the folder exists.
    """
    if target.exists():
        raise FreshetError(f"{target} exists: name a new folder, such as {target}-2")
    default_retriever(project.live)  # FreshetError where nothing is live yet
    aside = target.with_name(f".{target.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    live = aside / "live"
    live.mkdir(parents=True)
    with file_lock(project.live / WRITER_LOCK):
        for name in retrievers(project.live):
            shutil.copytree(
                project.live / name / GENERATIONS,
                live / name / GENERATIONS,
                copy_function=link,
                ignore=shutil.ignore_patterns(".*"),
            )
            shutil.copyfile(project.live / name / CURRENT, live / name / CURRENT)
        shutil.copyfile(project.live / CURRENT, live / CURRENT)
    for name in SETTINGS:
        if (project.root / name).is_file():
            shutil.copyfile(project.root / name, aside / name)
    advice = _copy_ledger(project, live / LEDGER)
    fsync_tree(aside)
    aside.rename(target)
    fsync(target.parent)
    return advice


def _copy_ledger(project: Project, target: Path) -> str | None:
    file = ledger_file(project)
    if file is None:
        return "the ledger is on a server: dump it now, with its own tool such as pg_dump"
    if file.is_file():
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    return None


def link(source: str | Path, target: str | Path) -> None:
    """Show a file under another name without copying it where that is possible, as one that never
    changes.
    """
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def restore(source: Path, root: Path) -> Project:
    """Put a backup into the folder `root`, in which nothing is live; settings that are there stay.

    FreshetError if something is live, or what was restored is damaged.
    """
    project = Project(root)
    if not (source / "live").is_dir():
        raise FreshetError(f"{source} is no backup: it has no folder live")
    file = ledger_file(project)
    for path in (project.live, *([file] if file else [])):
        if path.exists():
            raise FreshetError(
                f"{path} is there: move it away first, and delete it once the backup has what you miss"
            )
    aside = root / ".live.making"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source / "live", aside)
    if file is not None and (aside / LEDGER).is_file() and file.parent != project.live:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(aside / LEDGER, file)
    for name in SETTINGS:
        if (source / name).is_file() and not (root / name).exists():
            shutil.copyfile(source / name, root / name)
    fsync_tree(aside)
    aside.rename(project.live)
    fsync(root)
    if problem := next(problems(project), None):
        raise FreshetError(problem)
    return project
