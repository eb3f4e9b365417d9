"""DVC's notes of which process reads or writes which output: a killed DVC leaves its own behind.

DVC passes over notes of processes that are gone, but asks only whether the number is in use. After a restart of the
machine or the container it often is, by something else, and every build would end in "busy" until a person deletes
the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

NOTES = Path(".dvc", "tmp", "rwlock")


def remove_stale(root: Path) -> bool:
    """Remove the notes below `root` if no DVC that runs has made any of them; whether there were such.

    Notes that a running DVC shares stay as they are: it writes them, too.
    """
    path = root / NOTES
    if not path.exists():
        return False
    try:
        processes = list(_processes(json.loads(path.read_text(encoding="utf-8"))))
    except ValueError:  # cut off while they were written, which DVC refuses to read
        processes = [-1]
    if not processes or any(map(_is_dvc, processes)):
        return False
    path.unlink(missing_ok=True)
    return True


def _processes(notes: dict[str, dict]) -> Iterator[int]:
    for writer in notes.get("write", {}).values():
        yield writer["pid"]
    for readers in notes.get("read", {}).values():
        yield from (reader["pid"] for reader in readers)


def _is_dvc(pid: int) -> bool:
    import psutil  # which DVC brings

    try:
        return "dvc" in " ".join(psutil.Process(pid).cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return False
