"""Shared and exclusive locks on folders, so that no folder is deleted while it is read."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SharedFolderLock:
    """A shared lock on a folder, which any number of readers can hold at once.

    While a reader holds it, `exclusive_lock_if_unused` fails, so that no process deletes the
    folder. The lock ends when this object is garbage collected or its process ends.
    """

    def __init__(self, folder: Path) -> None:
        """Lock a folder.

        Raises:
            FileNotFoundError: If the folder does not exist, or is being deleted.
        """
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Between the opening and the locking, the folder may have been deleted and created
            # again. Then the lock is on the deleted folder.
            if not os.path.samestat(os.fstat(handle), os.stat(folder)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(handle)
            raise FileNotFoundError(f"{folder} is being deleted, or was") from None
        self.folder = folder
        self._handle = handle
        self._close_handle = weakref.finalize(self, os.close, handle)

    def is_valid(self) -> bool:
        """Return whether the path still leads to the locked folder, not to a newer folder."""
        if not self.folder.is_dir():
            return False
        return os.path.samestat(os.fstat(self._handle), os.stat(self.folder))


@contextmanager
def exclusive_lock_if_unused(folder: Path) -> Iterator[bool]:
    """Context manager that tries to lock a folder exclusively, for example to delete it.

    Yields:
        True if the folder is locked now: no reader has a shared lock, and none can get one until
        the block ends. False if a reader has a shared lock.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except BlockingIOError:
            is_locked = False
        yield is_locked
    finally:
        # Closing the folder also ends the lock.
        os.close(handle)
