"""A folder of documents, one a file: ids are paths below the folder; hidden and git-ignored files
are left alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from model_code.corpus.rows import RefusedRow, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import describe_files
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES, read_document
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.progress import Progress, no_progress

Ignored = tuple[Path, GitIgnoreSpec]  # a folder, and what its .gitignore says of what lies below


class FolderSource:
    """The documents below a folder; `passed_over` counts the other files by suffix."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = (root / str(settings.path)).resolve()
        self.passed_over: Counter[str] = Counter()
        if not self.folder.is_dir():
            raise FreshetError(
                f"{self.folder} is not a folder that can be read; corpus.path in params.yaml names it"
            )

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file of each document, by ascending id. FreshetError if a folder cannot be listed."""
        files = {
            path.relative_to(self.folder).as_posix(): path
            for path in self._walk(self.folder, self._above())
        }
        return dict(sorted(files.items()))

    def describe(self) -> dict[str, Any]:
        """The hash of each document's file; FreshetError if there is none."""
        if not self.files:
            kinds = ", ".join(DOCUMENT_SUFFIXES)
            raise FreshetError(
                f"{self.folder} holds no document; put files of these types there: {kinds}"
            )
        return describe_files({name: fingerprint(path) for name, path in self.files.items()})

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield a row for each document."""
        if table == "documents":
            for name, path in self.files.items():
                yield read_document(path, name, name)

    def _above(self) -> list[Ignored]:
        """What the folders above say, up to the repository that the folder lies in."""
        above = [self.folder, *self.folder.parents]
        top = next((place for place, folder in enumerate(above) if (folder / ".git").exists()), 0)
        return [
            ignored for folder in reversed(above[1 : top + 1]) for ignored in _gitignore(folder)
        ]

    def _walk(self, folder: Path, above: list[Ignored]) -> Iterator[Path]:
        ignored = above + _gitignore(folder)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise FreshetError(f"{folder} cannot be read: {error.strerror}") from None
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") or _is_ignored(
                path, entry.is_dir(follow_symlinks=False), ignored
            ):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path, ignored)
                continue
            if path.suffix.lower() in DOCUMENT_SUFFIXES and self._holds(entry):
                yield path
            else:
                self.passed_over[path.suffix.lower() or entry.name] += 1

    def _holds(self, entry: os.DirEntry[str]) -> bool:
        """Whether it is a file of the folder, and no link that leads out of it, to itself or to
        nothing.
        """
        try:
            return entry.is_file() and (
                not entry.is_symlink() or Path(entry).resolve().is_relative_to(self.folder)
            )
        except OSError:  # a link in a circle: it is passed over like others that cannot be read
            return False


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file, or that it cannot be read."""
    try:
        return hash_path(path)
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _gitignore(folder: Path) -> list[Ignored]:
    path = folder / ".gitignore"
    if not path.is_file():
        return []
    return [
        (
            folder,
            GitIgnoreSpec.from_lines(
                path.read_text(encoding="utf-8", errors="replace").splitlines()
            ),
        )
    ]


def _is_ignored(path: Path, is_folder: bool, ignored: list[Ignored]) -> bool:
    """Whether git would ignore it: the .gitignore that lies nearest, and says anything of it,
    decides.
    """
    for folder, spec in reversed(ignored):
        said = spec.check_file(path.relative_to(folder).as_posix() + "/" * is_folder).include
        if said is not None:
            return said
    return False
