"""A folder of documents, one per file.

The id of a document is the path of its file below the folder. Hidden files and files that git
ignores are left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from freshet.results import ReadingNote
from model_code.corpus.rows import RefusedRow, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import Source, describe_files
from model_code.corpus.sources.document_files import (
    DOCUMENT_SUFFIXES,
    read_document,
    unread_reason,
)
from model_code.corpus.sources.file_names import escape_name, is_usable_id, refuse_name
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.progress import Progress, no_progress


@dataclass(frozen=True)
class _IgnoreFile:
    """The .gitignore of a folder, which decides about everything below it."""

    folder: Path
    spec: GitIgnoreSpec


class FolderSource:
    """The documents below a folder.

    Attributes:
        folder: The folder.
        passed_over: Number of files that are no documents, by suffix. It is filled when `files` is
            read.
        unread: Names of the files that may hold a document and that no reader reads. It is filled
            when `files` is read.
        unusable_names: Printable names of the documents whose file names cannot be ids. It is
            filled when `files` is read.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = (root / str(settings.path)).resolve()
        self.passed_over: Counter[str] = Counter()
        self.unread: list[str] = []
        self.unusable_names: set[str] = set()
        if not self.folder.is_dir():
            raise FreshetError(
                f"{self.folder} is not a folder that can be read; corpus.path in params.yaml names "
                "it"
            )

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file of each document, in ascending order of ids.

        A name that cannot be an id is replaced by a printable form, and its file is refused.

        Raises:
            FreshetError: If a folder cannot be listed.
        """
        files: dict[str, Path] = {}
        unusable: list[tuple[str, Path]] = []
        for path in self._walk(self.folder, self._ignore_files_above()):
            name = path.relative_to(self.folder).as_posix()
            if is_usable_id(name):
                files[name] = path
            else:
                unusable.append((name, path))

        for name, path in unusable:
            printable_name = escape_name(name)
            while printable_name in files:
                printable_name += "\\"
            self.unusable_names.add(printable_name)
            files[printable_name] = path
        return dict(sorted(files.items()))

    def describe(self) -> dict[str, Any]:
        """Return the hash of each file.

        Raises:
            FreshetError: If there is no document.
        """
        if not self.files:
            suffixes = ", ".join(DOCUMENT_SUFFIXES)
            raise FreshetError(
                f"{self.folder} holds no document; put files of these types there: {suffixes}"
            )
        return describe_files({name: fingerprint(path) for name, path in self.files.items()})

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield one row per document."""
        if table == "documents":
            for name in self.files:
                yield self.read(name)

    def read(self, name: str) -> Row | RefusedRow:
        """Read a document.

        Args:
            name: A key of `files`.
        """
        if name in self.unusable_names:
            return refuse_name(name)
        return read_document(self.files[name], name, name)

    def _ignore_files_above(self) -> list[_IgnoreFile]:
        """Return the .gitignore files of the folders above in the repository, outermost first."""
        folders = [self.folder, *self.folder.parents]
        for depth, folder in enumerate(folders):
            if (folder / ".git").exists():
                above = folders[1 : depth + 1]
                break
        else:
            above = []

        ignore_files: list[_IgnoreFile] = []
        for folder in reversed(above):
            ignore_files.extend(_read_ignore_file(folder))
        return ignore_files

    def _walk(self, folder: Path, ignore_files_above: Sequence[_IgnoreFile]) -> Iterator[Path]:
        ignore_files = [*ignore_files_above, *_read_ignore_file(folder)]
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise FreshetError(f"{folder} cannot be read: {error.strerror}") from None

        for entry in entries:
            path = Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(".") or _is_ignored(path, is_folder, ignore_files):
                continue
            if is_folder:
                yield from self._walk(path, ignore_files)
            elif path.suffix.lower() in DOCUMENT_SUFFIXES and self._is_inside(entry):
                yield path
            else:
                self.passed_over[escape_name(path.suffix.lower() or entry.name)] += 1
                if unread_reason(entry.name) is not None:
                    self.unread.append(escape_name(path.relative_to(self.folder).as_posix()))

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry is a file, and no broken link or link out of the folder."""
        try:
            if not entry.is_file():
                return False
            return not entry.is_symlink() or Path(entry).resolve().is_relative_to(self.folder)
        except OSError:
            # A circle of links cannot be resolved.
            return False


def list_unread_files(source: Source) -> list[ReadingNote]:
    """Return a note for each file of a folder that may hold a document and cannot be read.

    Args:
        source: Any source. Only folders have such files.
    """
    if not isinstance(source, FolderSource):
        return []
    # `unread` is filled when the folder is listed.
    _ = source.files
    notes: list[ReadingNote] = []
    for name in sorted(source.unread):
        notes.append(ReadingNote(name, "unread file", f"it is {unread_reason(name)}", None))
    return notes


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or a text that states why it cannot be read."""
    try:
        return hash_path(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _read_ignore_file(folder: Path) -> list[_IgnoreFile]:
    """Return the .gitignore of a folder; an empty list if it has none."""
    path = folder / ".gitignore"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [_IgnoreFile(folder, GitIgnoreSpec.from_lines(lines))]


def _is_ignored(path: Path, is_folder: bool, ignore_files: Sequence[_IgnoreFile]) -> bool:
    """Return whether git ignores a path.

    The nearest .gitignore that has a matching pattern decides.
    """
    for ignore_file in reversed(ignore_files):
        name = path.relative_to(ignore_file.folder).as_posix()
        if is_folder:
            name += "/"
        included = ignore_file.spec.check_file(name).include
        if included is not None:
            return included
    return False
