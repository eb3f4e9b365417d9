"""A lock between processes, held as long as a file stays open: the system frees it when its holder dies."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())  # by this thread, or this coroutine


@contextmanager
def file_lock(path: Path, waiting: str | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; another process or thread waits, and who holds it already goes on.

    waiting: a line for the user, on standard error, where the lock is not free at once.
    """
    path = path.resolve()
    if path in _held.get():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        _take(stream, waiting)
        token = _held.set(_held.get() | {path})
        try:
            yield
        finally:
            _held.reset(token)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock at this moment."""
    if not path.is_file():
        return True
    with path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _take(stream: TextIO, waiting: str | None) -> None:
    if waiting is not None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
    fcntl.flock(stream, fcntl.LOCK_EX)
