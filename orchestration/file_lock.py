"""A lock between processes, held as long as a file stays open: the system frees it when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())  # by this thread, or this coroutine


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; another process or thread waits, and who holds it already goes on."""
    path = path.resolve()
    if path in _held.get():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        token = _held.set(_held.get() | {path})
        try:
            yield
        finally:
            _held.reset(token)
