"""The inbox: a folder whose files are added to the live collection, each exactly once.

    inbox/FILE          waits; unfinished files begin with a dot or end in .part
    inbox/done/FILE     was received: its accepted rows are in the ledger
    inbox/failed/FILE   could not be read, or all of its rows were refused; FILE.reason says why

Files are identified by the hash of their content. The hash and the documents of a file are recorded
in the ledger in one transaction. The file is moved afterwards. If a crash happens in between, the
next call recognises the hash and only moves the file.

If a file cannot be received now, for example without read permission, it stays in the inbox, and
the error is logged. All other files are received.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import update_reading_notes
from model_code.collection.ledger.events import Receipt
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.rows import printable
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import fsync, hash_path, write_text
from model_code.project import Project, file_lock

log = logging.getLogger(__name__)

# Last logged error of each file that stays in an inbox.
_logged_errors: dict[Path, str] = {}

# Name of the inbox folder in the project's root.
INBOX = "inbox"

# Names of the folders in the inbox for received files and failed files.
DONE = "done"
FAILED = "failed"

# Largest number of refused rows that a file FILE.reason lists.
MAX_LISTED_ROWS = 20

# Largest length of a reason or a logged error, in characters.
MAX_REASON_LENGTH = 1000

# Largest length of a file name in `done/` and `failed/`, in bytes. File systems allow 255 bytes. A
# part of a hash or the suffix .reason may be added to the name.
MAX_NAME_BYTES = 200


@dataclass(frozen=True)
class InboxResult:
    """A file that was moved out of the inbox.

    Attributes:
        file: Name of the file.
        receipt: Result of recording its rows. None if the file could not be read.
        reason: Why the file failed. None if it was received.
    """

    file: str
    receipt: Receipt | None
    reason: str | None


def waiting(project: Project) -> list[Path]:
    """Return the finished files in the inbox, oldest first.

    Args:
        project: The project.
    """
    modification_times: dict[Path, int] = {}
    for path in (project.root / INBOX).glob("*"):
        is_unfinished = path.name.startswith(".") or path.suffix == ".part"
        if is_unfinished:
            continue
        # The error means that another process has moved the file meanwhile.
        with suppress(FileNotFoundError):
            status = path.stat()
            if S_ISREG(status.st_mode):
                modification_times[path] = status.st_mtime_ns
    return sorted(modification_times, key=lambda path: (modification_times[path], path.name))


def receive_inbox(index: LiveIndex) -> list[InboxResult]:
    """Record the documents of all finished files. `index.apply` makes them searchable.

    Args:
        index: Live index that receives the documents.

    Returns:
        A result for each file that was moved. A file that cannot be received now is only logged.

    Raises:
        FreshetError: If the settings of the project are invalid.
    """
    if not waiting(index.project):
        return []

    results: list[InboxResult] = []
    settings = index.settings
    with file_lock(index.project.root / INBOX / ".lock"):
        for path in waiting(index.project):
            try:
                result = _receive_file(index, path, settings)
            except Exception as error:
                # An error of one file must not keep other files from being received.
                reason = str(error) or type(error).__name__
                message = printable(f"{path.name} stays in {INBOX}/: {reason}", MAX_REASON_LENGTH)
                is_expected = isinstance(error, (FreshetError, OSError))
                # The inbox is looked at every few seconds, so the same error is logged only once.
                if _logged_errors.get(path) != message:
                    _logged_errors[path] = message
                    log.error(message, exc_info=not is_expected)
                continue
            _logged_errors.pop(path, None)
            if result is not None:
                results.append(result)
    return results


def _receive_file(index: LiveIndex, path: Path, settings: CorpusSettings) -> InboxResult | None:
    """Record the documents of a file, and move the file.

    A file that cannot be read, or none of whose rows is accepted, is moved to the folder of failed
    files, with a text that gives the reason.

    Args:
        index: Live index that receives the documents.
        path: File in the inbox.
        settings: Settings by which rows are read and cleaned.

    Returns:
        The result. None if the file changed while it was read. Then it is not finished yet, and
        stays in the inbox.
    """
    content_hash = hash_path(path)
    # File names can contain characters that a ledger cannot store. The printable name has none.
    name = printable(path.name, len(path.name))

    receipt = None
    reason = None
    try:
        rows = clean_rows(read_file(path, name, settings.columns), settings, name)
    except (FreshetError, ValueError) as error:
        # Libraries that read file formats raise a `ValueError` for a malformed file.
        reason = printable(error, MAX_REASON_LENGTH)
    else:
        was_changed = hash_path(path) != content_hash
        if was_changed:
            return None
        # The name of the batch is the hash, so a file is recorded once even after a crash.
        batch = f"{INBOX}:{content_hash}"
        receipt = index.receive(rows, f"{INBOX}/{name}", batch)
        update_reading_notes(index.project, [name], rows.notes)
        has_accepted_rows = bool(receipt.events or receipt.unchanged)
        if receipt.rejected and not has_accepted_rows:
            reason = _refusal_text(receipt)

    folder = DONE if reason is None else FAILED
    target = _target_path(path, folder, content_hash)
    if reason is not None:
        text = f"{reason}\nCorrect the file and put it into {INBOX}/ again.\n"
        write_text(target.with_name(f"{target.name}.reason"), text)
    _move(path, target)
    return InboxResult(name, receipt, reason)


def _refusal_text(receipt: Receipt) -> str:
    """Return a text that lists the first refused rows with their reasons."""
    rejected = receipt.rejected
    lines = [f"no row was accepted, {len(rejected):,} were refused:"]
    for rejection in rejected[:MAX_LISTED_ROWS]:
        document_id = rejection.document_id or "(no id)"
        lines.append(f"row {rejection.row}  {document_id}  {rejection.reason}")
    unlisted = len(rejected) - MAX_LISTED_ROWS
    if unlisted > 0:
        lines.append(f"and {unlisted:,} more")
    return "\n".join(lines)


def _target_path(path: Path, folder: str, content_hash: str) -> Path:
    """Return the path to which a file is moved.

    The target folder may have a file with the same name and another content. Then a part of the
    hash is put before the name, so that no file is overwritten.

    Args:
        path: The file in the inbox.
        folder: `DONE` or `FAILED`.
        content_hash: Hash of the file.
    """
    name = path.name
    encoded = os.fsencode(name)
    if len(encoded) > MAX_NAME_BYTES:
        # The beginning of the name is cut off, because the suffix tells the format.
        name = encoded[-MAX_NAME_BYTES:].decode("utf-8", "ignore")
    target = path.parent / folder / name
    if target.exists() and hash_path(target) != content_hash:
        return target.with_name(f"{content_hash[:12]}-{target.name}")
    return target


def _move(path: Path, target: Path) -> None:
    """Move a file, and force the move to the disk."""
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
    fsync(target.parent)
