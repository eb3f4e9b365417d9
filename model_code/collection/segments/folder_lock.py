"""Shared and exclusive locks on a segment's folder, so that nobody deletes what is read."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SharedFolderLock:
    """A folder that is read: nobody deletes it before this object is freed, or its process ends."""

    def __init__(self, folder: Path) -> None:
        """FileNotFoundError if the folder is gone, or is being deleted."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # deleted before it was locked, and made again
            if not os.path.samestat(os.fstat(handle), os.stat(folder)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(handle)
            raise FileNotFoundError(f"{folder} is being deleted, or was") from None
        self.folder, self._handle = folder, handle
        self._closed = weakref.finalize(self, os.close, handle)

    def is_valid(self) -> bool:
        """Whether the folder still has its name, and no other one has got it since."""
        return self.folder.is_dir() and os.path.samestat(
            os.fstat(self._handle), os.stat(self.folder)
        )


@contextmanager
def exclusive_lock_if_unused(folder: Path) -> Iterator[bool]:
    """Whether nobody reads `folder`; if so, nobody begins to while this lasts."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)
