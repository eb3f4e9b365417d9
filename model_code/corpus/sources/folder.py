"""A folder of documents, one per file.

The id of a document is the path of its file below the folder. Hidden files and files that git
ignores are left out; see `ignored_files`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

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
from model_code.corpus.sources.ignored_files import open_ignore_rules
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.progress import Progress, no_progress

_OUTER_LINK = (
    "it is a link that leads out of the folder; copy the file, or follow the other folder as well: "
    "freshet sync --source NAME PATH"
)


class FolderSource:
    """The documents in the files below a folder.

    The first use of `files` lists the folder, and fills all attributes except `folder`.

    Attributes:
        folder: The folder.
        passed_over: Number of files that are not read as documents, by suffix.
        ignored_files: Number of document files that git ignores, outside of ignored folders.
        ignored_folders: Number of folders that git ignores.
        unread: Names of the files that may hold a document but have no reader.
        outer_links: Names of the links that lead out of the folder. They are not followed.
        unusable_names: Printable names of the documents whose file names cannot be ids.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Set the folder. It is listed when `files` is first used.

        Args:
            settings: Settings of the corpus, of which `path` is read.
            root: Folder that a relative path is resolved against.
            locked: Not used, because a file has one version only. `describe` shows if it changed.

        Raises:
            FreshetError: If there is no such folder.
        """
        self.folder = (root / str(settings.path)).resolve()
        self.passed_over: Counter[str] = Counter()
        self.ignored_files = 0
        self.ignored_folders = 0
        self.unread: list[str] = []
        self.outer_links: list[str] = []
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
        for path in self._find_files():
            name = path.relative_to(self.folder).as_posix()
            if is_usable_id(name):
                files[name] = path
            else:
                unusable.append((name, path))

        for name, path in unusable:
            printable_name = escape_name(name)
            # Another file may have the printable form as its name.
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

    def _find_files(self) -> Iterator[Path]:
        """Yield the files of all documents.

        Folders are listed level by level, so that git runs once per level and not once per folder.
        """
        rules = open_ignore_rules(self.folder)
        folders = [self.folder]
        while folders:
            entries: list[os.DirEntry[str]] = []
            for folder in folders:
                entries.extend(_list_folder(folder))
            ignored = rules.find_ignored(entries)

            folders = []
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if entry.path in ignored:
                    self._count_ignored(entry, is_folder)
                elif is_folder:
                    folders.append(Path(entry.path))
                elif self._is_document(entry):
                    yield Path(entry.path)

    def _count_ignored(self, entry: os.DirEntry[str], is_folder: bool) -> None:
        """Count a folder or a document that git ignores. Other ignored files are not counted."""
        if is_folder:
            self.ignored_folders += 1
        elif os.path.splitext(entry.name)[1].lower() in DOCUMENT_SUFFIXES:
            self.ignored_files += 1

    def _is_document(self, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry is a document file; count it in `passed_over` if it is not."""
        suffix = os.path.splitext(entry.name)[1].lower()
        if suffix in DOCUMENT_SUFFIXES and self._is_inside(entry):
            return True
        self.passed_over[escape_name(suffix or entry.name)] += 1
        if self._leads_outside(entry, suffix):
            self.outer_links.append(self._printable_name(entry))
        elif unread_reason(entry.name) is not None:
            self.unread.append(self._printable_name(entry))
        return False

    def _printable_name(self, entry: os.DirEntry[str]) -> str:
        """Return the path of an entry below the folder, in a form that can be printed."""
        return escape_name(Path(entry.path).relative_to(self.folder).as_posix())

    def _leads_outside(self, entry: os.DirEntry[str], suffix: str) -> bool:
        """Return whether an entry is a link to a folder or a document outside of the folder."""
        if not entry.is_symlink():
            return False
        try:
            target = Path(entry).resolve(strict=True)
        except (OSError, RuntimeError):
            # The link is broken, or part of a cycle of links.
            return False
        is_readable = target.is_dir() or suffix in DOCUMENT_SUFFIXES
        return is_readable and not target.is_relative_to(self.folder)

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry is a file in the folder, or a link to a file in the folder.

        Links to other places are not followed, so that nobody reads files that were not named.
        """
        try:
            if not entry.is_file():
                return False
            if not entry.is_symlink():
                return True
            return Path(entry).resolve().is_relative_to(self.folder)
        except OSError:
            # Links that point to each other in a cycle cannot be resolved.
            return False


def describe_ignored_files(source: Source) -> str:
    """Return how many files of a folder git ignores, as a sentence; empty if there are none.

    Args:
        source: Any source. Only folders have such files.
    """
    if not isinstance(source, FolderSource):
        return ""
    # The files are counted when the folder is listed.
    _ = source.files
    counts: list[str] = []
    for number, noun in ((source.ignored_files, "file"), (source.ignored_folders, "folder")):
        if number:
            plural = "" if number == 1 else "s"
            counts.append(f"{number:,} {noun}{plural}")
    if not counts:
        return ""
    verb = "is" if source.ignored_files + source.ignored_folders == 1 else "are"
    return f"{' and '.join(counts)} {verb} left out, because git ignores them"


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
    for name in sorted(source.outer_links):
        notes.append(ReadingNote(name, "unread file", _OUTER_LINK, None))
    return notes


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or a text that states why it cannot be read."""
    try:
        return hash_path(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder that are not hidden.

    Raises:
        FreshetError: If the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise FreshetError(f"{folder} cannot be read: {error.strerror}") from None
