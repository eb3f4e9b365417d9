"""Read and write a shared place for publications: a folder, or object storage through fsspec.

head.json                        the current signed head, which is written last
heads/00000007.json              earlier heads that a registered follower may still use
generations/R/000003-HASH/...    a folder of a generation, whose manifest is written last
followers/NAME.json              a signed registration of each follower
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import atomic_write

HEAD = "head.json"
HEADS = "heads"
GENERATIONS = "generations"
FOLLOWERS = "followers"
# First character of the names of temporary files.
HIDDEN = "."


class SharedStorage:
    """The files of a shared place. Their names are relative to its address."""

    def __init__(self, target: str) -> None:
        """Open the address; nothing is read or written yet.

        Args:
            target: A folder, or an address of fsspec such as `s3://bucket/notes`.

        Raises:
            FreshetError: If the library for this kind of address is not installed.
        """
        # fsspec takes long to import, and only published collections need it.
        import fsspec

        self.target = target
        try:
            filesystem, path = fsspec.url_to_fs(target)
        except (ImportError, ValueError) as error:
            raise FreshetError(
                f"{target} cannot be opened ({error}); name a folder, or install the library that "
                "the message names, in the clone of Freshet: pip install -e '.[s3]' for s3://"
            ) from None
        self._filesystem: Any = filesystem
        self._path = path.rstrip("/")
        self._is_local = "file" in _protocols(filesystem)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file.

        Raises:
            FreshetError: If the storage does not answer.
        """
        with self._explained(name):
            try:
                return self._filesystem.cat_file(self._full(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Readers see the old content or the new one.

        Only one process at a time may write a file.

        Raises:
            FreshetError: If the storage refuses the file.
        """
        with self._explained(name):
            if self._is_local:
                path = Path(self._full(name))
                # A process that was killed while it wrote this file has left a temporary one.
                for leftover in path.parent.glob(f"{HIDDEN}{path.name}.*"):
                    leftover.unlink(missing_ok=True)
                with atomic_write(path) as staged:
                    staged.write_bytes(content)
            else:
                self._filesystem.pipe_file(self._full(name), content)

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file.

        Raises:
            FreshetError: If the storage refuses the file.
        """
        with self._explained(name):
            if self._is_local:
                Path(self._full(name)).parent.mkdir(parents=True, exist_ok=True)
            self._filesystem.put_file(str(source), self._full(name))

    def download(self, name: str, target: Path) -> None:
        """Copy a file to this machine.

        Raises:
            FreshetError: If the file is missing, or the storage does not answer.
        """
        with self._explained(name):
            self._filesystem.get_file(self._full(name), str(target))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, ascending.

        Temporary files, which are being written or were left by a killed process, are left out.
        """
        with self._explained(folder):
            # fsspec remembers listings, which other machines may have changed.
            self._filesystem.invalidate_cache()
            try:
                paths = self._filesystem.ls(self._full(folder), detail=False)
            except FileNotFoundError:
                return []
            names: set[str] = set()
            for path in paths:
                _, _, name = path.rstrip("/").rpartition("/")
                if not name.startswith(HIDDEN):
                    names.add(name)
            return sorted(names)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files and folders. Names that do not exist are left out."""
        for name in names:
            with self._explained(name):
                try:
                    self._filesystem.rm(self._full(name), recursive=True)
                except FileNotFoundError:
                    continue

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Raise a `FreshetError` of one line in place of an error of the storage.

        The libraries of object storages raise errors that have no common base.
        """
        try:
            yield
        except FreshetError:
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            raise FreshetError(
                f"{self.target} failed at {name}: {reason}; check the address, the permissions and "
                "the free space"
            ) from error


def _protocols(filesystem: Any) -> tuple[str, ...]:
    """Return the protocols of a file system, such as "file", which fsspec gives as one or many."""
    protocol = filesystem.protocol
    if isinstance(protocol, str):
        return (protocol,)
    return tuple(protocol)
