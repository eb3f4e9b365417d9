"""Stages that ran, kept aside until one process records them all: opening MLflow takes seconds each time.

A stage spools its record. Whoever drives the build records what is spooled while DVC runs on; a stage that nobody
follows (a bare `dvc repro`) does it itself. After a crash it waits for the next build or `freshet ui`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from model_code.files import read_json, replace_folder, write_json
from orchestration.file_lock import file_lock
from orchestration.project import Project
from orchestration.registry.stage_record import StageRecord
from orchestration.registry.tracking import tracker_for, tracking_is_on

RECORD, ARTIFACTS = "record.json", "artifacts"


def keep(project: Project, record: StageRecord) -> None:
    """Spool `record`, whole or not at all, with copies of its small files; nothing if tracking is off."""
    if not tracking_is_on():
        return
    aside = project.state / "staging" / f"{record.stage}.record"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / ARTIFACTS).mkdir(parents=True)
    for path in record.artifacts:
        shutil.copyfile(path, aside / ARTIFACTS / path.name)
    write_json(aside / RECORD, asdict(replace(record, artifacts=[path.name for path in record.artifacts])))
    replace_folder(aside, _folder(project) / f"{round(record.started * 1e6):020d}.{record.stage}")


def record_all(project: Project) -> None:
    """Record every spooled stage in the order in which they started; nothing if there is none, or tracking is off.

    A record leaves the spool once its run is whole, and the same record twice is one run: a crash loses and doubles
    nothing.
    """
    if not tracking_is_on() or not any(_entries(project)):
        return
    with file_lock(project.state / "spool.lock"):
        for entry in sorted(_entries(project)):
            tracker_for(project).record_stage(_load(entry))
            (entry / RECORD).unlink()  # first, as a folder without it is no entry
            shutil.rmtree(entry)


def record_or_say(project: Project) -> bool:
    """`record_all`, but if that fails say so and return False: a store that is away must not end a build.

    Whatever the tracking server, its database or the disk has against it: the records stay, and so do the outputs.
    """
    try:
        record_all(project)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        print(f"not recorded in MLflow yet ({type(error).__name__}: {first}); the next build does it", file=sys.stderr)
        return False
    return True


def _folder(project: Project) -> Path:
    return project.state / "spool"


def _entries(project: Project) -> Iterator[Path]:
    return (path.parent for path in _folder(project).glob(f"*/{RECORD}"))


def _load(entry: Path) -> StageRecord:
    record = StageRecord(**read_json(entry / RECORD))
    return replace(record, artifacts=[entry / ARTIFACTS / name for name in record.artifacts])
