"""The opt-in log of queries: JSON lines in files of this machine, the oldest deleted as new ones are begun."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


class QueryLog:
    """Append one line per search to the newest of `files` files of `max_bytes` each; only this user may read them."""

    def __init__(self, folder: Path, max_bytes: int, files: int) -> None:
        self.folder, self.max_bytes, self.files = folder, max_bytes, files
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        existing = self._existing()
        self._stream: TextIO = _open(existing[-1] if existing else self._path(1))

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
        self._stream.close()
        existing = self._existing()
        self._stream = _open(self._path(_number(existing[-1]) + 1))
        for path in existing[: max(0, len(existing) + 1 - self.files)]:
            path.unlink()

    def _existing(self) -> list[Path]:
        return sorted(self.folder.glob("queries-*.jsonl"), key=_number)

    def _path(self, number: int) -> Path:
        return self.folder / f"queries-{number:06d}.jsonl"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _open(path: Path) -> TextIO:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(handle, "a", encoding="utf-8")
