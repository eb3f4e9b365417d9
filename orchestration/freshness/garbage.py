"""What retrains and pilots leave behind: copies of the corpus, and what was built of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from orchestration.freshness.pilot import FOLDER as PILOT
from orchestration.freshness.pilot import LOCK
from orchestration.live.retrain_plan import FOLDER, PLAN
from orchestration.pipeline.garbage import Garbage, remove, size
from orchestration.project import Project, is_free


def retrains(project: Project, keep: int) -> Iterator[Garbage]:
    """The copies of the corpus that retrains worked on, with what they built: the registry has what came of them.

    That of the `keep` newest stays, of one at least: it may be under way.
    """
    folders = [path.parent for path in (project.state / FOLDER).glob(f"*/{PLAN}")]
    newest_last = sorted(folders, key=lambda folder: (folder / PLAN).stat().st_mtime_ns)
    for folder in newest_last[: -max(keep, 1)]:
        yield Garbage(f"work of retrain {folder.name}", size(folder), partial(remove, folder))


def killed_pilot(project: Project) -> Iterator[Garbage]:
    """The work of a pilot that was cut off."""
    folder, lock = project.state / PILOT, project.state / LOCK
    if folder.is_dir() and is_free(lock):
        yield Garbage("work of a pilot that was cut off", size(folder), partial(_remove_pilot, folder, lock))


def _remove_pilot(folder: Path, lock: Path) -> None:
    """Remove it, unless another one began since it was listed."""
    if is_free(lock):
        remove(folder)
