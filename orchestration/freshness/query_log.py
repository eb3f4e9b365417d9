"""The opt-in log of queries: JSON lines in files of this machine, the oldest deleted as new ones are begun."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

log = logging.getLogger(__name__)
FOLDER = "queries"  # in the project's state
FILE_BYTES, FILES = 10_000_000, 10


@dataclass(frozen=True)
class Logged:
    """A search of the log: when it was answered, in seconds since 1970, and what was asked."""

    time: float
    text: str


def is_kept(state: Path) -> bool:
    """Whether there is a query log in the project's folder `state`."""
    return bool(_files(state / FOLDER))


def logged_since(state: Path, moment: float) -> list[Logged]:
    """The searches that were logged after `moment`, about in their order; none where there is no log.

    A line that a full disk cut off is passed over, and said so; one that is just being written waits.
    """
    logged: list[Logged] = []
    for path in reversed(_files(state / FOLDER)):
        entries = _read(path)
        logged = [entry for entry in entries if entry.time > moment] + logged
        if entries and entries[0].time <= moment:
            break
    return logged


class QueryLog:
    """Append one line per search to the newest of `files` files of `max_bytes` each; only this user may read them."""

    def __init__(self, folder: Path, max_bytes: int, files: int) -> None:
        self.folder, self.max_bytes, self.files = folder, max_bytes, files
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        existing = self._existing()
        self._newest = _number(existing[-1]) if existing else 1
        self._stream: TextIO = _open(self._path(self._newest))

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append `entry`, and hand it to the operating system, so that a crash of the service loses nothing."""
        line = json.dumps(entry, ensure_ascii=False)
        with self._lock:
            if self._stream.tell() >= self.max_bytes:
                self._rotate()
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._stream.close()

    def _rotate(self) -> None:
        full, self._stream = self._stream, _open(self._path(self._newest + 1))  # an error leaves the old one open
        full.close()
        self._newest += 1
        for path in self._existing()[: -self.files]:
            path.unlink(missing_ok=True)

    def _existing(self) -> list[Path]:
        return _files(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"queries-{number:06d}.jsonl"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("queries-*.jsonl"), key=_number)


def _read(path: Path) -> list[Logged]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:  # the service deletes the oldest file as it begins a new one
        return []
    entries, broken = [], 0
    for line in text.split("\n")[:-1]:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            broken += 1
        else:
            entries.append(Logged(entry["time"], entry["text"]))
    if broken:
        log.warning("%s: lines that cannot be read, and do not count: %d", path, broken)
    return entries


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _open(path: Path) -> TextIO:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(handle, "a", encoding="utf-8")
