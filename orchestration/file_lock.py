"""A lock between processes, held as long as a file stays open: the system frees it when its holder dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def file_lock(path: Path, waiting: str | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; another process or thread waits, and who holds it already goes on.

    waiting: a line for the user, on standard error, where the lock is not free at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.resolve(), is_singleton=True, fallback_to_soft=False)
    try:
        lock.acquire(blocking=waiting is None)
    except Timeout:
        print(waiting, file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock at this moment."""
    if not path.is_file():
        return True
    try:
        with FileLock(path, fallback_to_soft=False).acquire(blocking=False):
            return True
    except Timeout:
        return False
