"""The inbox: files that are dropped into the project's folder `inbox/` are received exactly once,
by content.

    inbox/FILE          waits; names that begin with a dot or end in .part are not finished and left alone
    inbox/done/FILE     its sound rows are in the ledger
    inbox/failed/FILE   it could not be read, or all of its rows were refused; FILE.reason says why

A file's hash and its documents enter the ledger in one transaction, and only then is the file
moved. So a crash at any point leaves a file that either was not received at all, or is only moved
when it is looked at again.

A file that cannot be taken now, such as one that nobody may read, stays and is logged; those behind
it are taken.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Receipt
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.rows import printable
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import fsync, hash_path, write_text
from model_code.project import Project, file_lock

log = logging.getLogger(__name__)
INBOX, DONE, FAILED = "inbox", "done", "failed"
SHOWN = 20  # refused rows in a reason
# of a name below done/ and failed/: a system takes 255, and a hash or .reason may be added
MOST_BYTES = 200


@dataclass(frozen=True)
class InboxResult:
    """A file that was taken out of the inbox: its receipt, None if it could not be read, and why it
    failed.
    """

    file: str
    receipt: Receipt | None
    reason: str | None


def waiting(project: Project) -> list[Path]:
    """The finished files in the inbox, the earliest first."""
    files = []
    for path in (project.root / INBOX).glob("*"):
        if path.name.startswith(".") or path.suffix == ".part":
            continue
        with suppress(FileNotFoundError):  # somebody else has just taken it
            status = path.stat()
            if S_ISREG(status.st_mode):
                files.append((status.st_mtime_ns, path.name, path))
    return [path for *_, path in sorted(files)]


def receive_inbox(live: LiveIndex) -> list[InboxResult]:
    """Receive every finished file; `live.apply` then makes the documents searchable."""
    if not waiting(live.project):
        return []
    taken, settings = [], live.settings  # a mistake in params.yaml is no file's
    with file_lock(live.project.root / INBOX / ".lock"):
        for path in waiting(live.project):
            try:
                taken.append(_take(live, path, settings))
            except Exception as error:  # the files behind it do not suffer from it
                expected = isinstance(error, (FreshetError, OSError))
                said = printable(
                    f"{path.name} stays in {INBOX}/: {error or type(error).__name__}", 1000
                )
                log.error(said, exc_info=not expected)
    return [each for each in taken if each is not None]


def _take(live: LiveIndex, path: Path, settings: CorpusSettings) -> InboxResult | None:
    """Receive one file; None if it changed meanwhile, so that it is not finished after all."""
    batch = hash_path(path)
    # which a ledger can hold, whatever the file is called
    name = printable(path.name, len(path.name))
    receipt = reason = None
    try:
        rows = clean_rows(read_file(path, name, settings.columns), settings, name)
    # whatever the readers of the formats say of a broken file
    except (FreshetError, ValueError) as error:
        reason = printable(error, 1000)
    else:
        if hash_path(path) != batch:
            return None
        receipt = live.receive(rows, f"{INBOX}/{name}", f"{INBOX}:{batch}")
        if receipt.rejected and not (receipt.events or receipt.unchanged):
            reason = _refusals(receipt)
    target = _target(path, DONE if reason is None else FAILED, batch)
    if reason is not None:
        text = f"{reason}\nMend the file and drop it into {INBOX}/ again.\n"
        write_text(target.with_name(f"{target.name}.reason"), text)
    _move(path, target)
    return InboxResult(name, receipt, reason)


def _refusals(receipt: Receipt) -> str:
    """Why the rows were refused, a line for each of the first."""
    rows = receipt.rejected
    lines = [
        f"row {refusal.row}  {refusal.document_id or '(no id)'}  {refusal.reason}"
        for refusal in rows[:SHOWN]
    ]
    more = [f"and {len(rows) - SHOWN:,} more"] if len(rows) > SHOWN else []
    return "\n".join([f"no row was accepted, {len(rows):,} were refused:", *lines, *more])


def _target(path: Path, folder: str, content_hash: str) -> Path:
    """Where to move the file; one of the same name and other content that lies there already is
    kept.
    """
    encoded = os.fsencode(path.name)  # of a long one the end stays, where its format stands
    name = (
        path.name if len(encoded) <= MOST_BYTES else encoded[-MOST_BYTES:].decode("utf-8", "ignore")
    )
    target = path.parent / folder / name
    if target.exists() and hash_path(target) != content_hash:
        return target.with_name(f"{content_hash[:12]}-{target.name}")
    return target


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
    fsync(target.parent)
