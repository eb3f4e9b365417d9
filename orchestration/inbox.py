"""The inbox: files that are dropped into the project's folder `inbox/` are received exactly once, by content.

    inbox/FILE          waits; names that begin with a dot or end in .part are not finished and left alone
    inbox/done/FILE     its sound rows are in the ledger
    inbox/failed/FILE   it could not be read; FILE.reason says why

A file's hash and its documents enter the ledger in one transaction, and only then is the file moved. So a crash at any
point leaves a file that either was not received at all, or is only moved when it is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import fsync, hash_path, write_text
from model_code.ledger.records import Receipt
from orchestration import arrivals
from orchestration.file_lock import file_lock
from orchestration.freshening import Freshener
from orchestration.project import Project

INBOX, DONE, FAILED = "inbox", "done", "failed"


@dataclass(frozen=True)
class Taken:
    """A file that was taken out of the inbox: its receipt, or why it could not be read."""

    file: str
    receipt: Receipt | None
    reason: str | None = None


def waiting(project: Project) -> list[Path]:
    """The finished files in the inbox, the earliest first."""
    folder = project.root / INBOX
    files = [path for path in folder.glob("*") if path.is_file() and _is_finished(path)]
    return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))


def take_all(freshener: Freshener) -> list[Taken]:
    """Receive every finished file; `freshener.apply_pending()` then makes the documents searchable."""
    if not waiting(freshener.project):
        return []
    with file_lock(freshener.project.root / INBOX / ".lock"):
        return list(_take_all(freshener))


def _take_all(freshener: Freshener) -> Iterator[Taken]:
    for path in waiting(freshener.project):
        taken = _take(freshener, path)
        if taken is not None:
            yield taken


def _take(freshener: Freshener, path: Path) -> Taken | None:
    """Receive one file; None if it changed meanwhile, so that it is not finished after all."""
    settings, batch = freshener.settings, hash_path(path)
    try:
        found = arrivals.admit(arrivals.rows_of_file(path, settings), settings)
    except (FreshetError, OSError, ValueError) as error:  # whatever the readers of the formats say of a broken file
        target = _target(path, FAILED, batch)
        reason = f"{error}\nMend the file and drop it into {INBOX}/ again.\n"
        write_text(target.with_name(f"{target.name}.reason"), reason)
        _move(path, target)
        return Taken(path.name, None, str(error))
    if hash_path(path) != batch:
        return None
    receipt = freshener.take(found, f"{INBOX}/{path.name}", batch=f"{INBOX}:{batch}")
    _move(path, _target(path, DONE, batch))
    return Taken(path.name, receipt)


def _is_finished(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix != ".part"


def _target(path: Path, folder: str, content_hash: str) -> Path:
    """Where to move the file; one of the same name and other content that lies there already is kept."""
    target = path.parent / folder / path.name
    if target.exists() and hash_path(target) != content_hash:
        return target.with_name(f"{content_hash[:12]}-{path.name}")
    return target


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
    fsync(target.parent)
