"""Define the interface of a source, open the source of the settings, and lock its content.

A source delivers rows of documents, queries and qrels. `freshet ingest` writes a description of its
content to `corpus.lock.json`. The corpus stage refuses a source that has changed since then.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from model_code.corpus.rows import RefusedRow, Row, Table
from model_code.corpus.settings import SOURCES, CorpusSettings
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text
from model_code.progress import Progress, no_progress

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_BEIR_FILES = ("corpus.jsonl", "corpus.jsonl.gz")


class Source(Protocol):
    """The interface of all sources of documents, queries and qrels.

    To add a kind of source, write a class with these methods and add a row to `SOURCES` in
    `corpus/settings.py`. Its constructor takes the arguments (settings, root, locked): the settings
    of the corpus, the root of the project, and the description in `corpus.lock.json`. `locked` is
    None while the lock is made.
    """

    def describe(self) -> dict[str, Any]:
        """Describe the content of the source, as cheaply as possible.

        Returns:
            A mapping with at least the keys `versions`, `watermark` and `content_hash`. It holds no
            absolute path and no time, so that equal content has an equal description.
        """

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table, always in the same order.

        A source that lacks the table yields nothing.

        Args:
            table: "documents", "queries" or "qrels".
            progress: Receives the progress of reading.
        """


def open_source(
    settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
) -> Source:
    """Open the source that the settings name.

    Args:
        settings: The settings of the corpus.
        root: Folder that relative paths are resolved against.
        locked: Content of `corpus.lock.json`, which pins the versions to read. None: the newest.
    """
    settings = resolve_source_kind(settings, root)
    # The reader is named as "module:class".
    module_name, _, class_name = SOURCES[settings.source].reader.partition(":")
    source_class = getattr(importlib.import_module(module_name), class_name)
    return source_class(settings, root, locked)


def resolve_source_kind(
    settings: CorpusSettings, root: Path, remedy: str = "corpus.path in params.yaml names it"
) -> CorpusSettings:
    """Replace `source: auto` in the settings by the kind of source that `corpus.path` names.

    Other settings are returned unchanged.

    Args:
        settings: Settings of the source.
        root: Folder that a relative path is relative to.
        remedy: End of the error message: what names the path, or what to name in its place.

    Raises:
        FreshetError: If the path does not exist and is not the name of a data set, or if it is a
            file that holds no rows.
    """
    if settings.source != "auto":
        return settings
    if settings.path is None:
        return settings.replace(source="installed_packages")

    path = root / settings.path
    if path.is_dir():
        is_beir = any((path / name).is_file() for name in _BEIR_FILES)
        kind = "beir" if is_beir else "folder"
        return settings.replace(source=kind)
    if path.is_file():
        # This module is imported at every start, and most starts read no file.
        from model_code.corpus.sources.readers import require_row_format

        require_row_format(path, str(path))
        return settings.replace(source="files")
    if _HUB_NAME.fullmatch(settings.path):
        return settings.replace(source="hub", hub=settings.hub.replace(name=settings.path))
    raise FreshetError(f"{path} does not exist; {remedy}")


def describe_files(hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of a source that consists of files; see `Source.describe`.

    Args:
        hashes: Hash of each file, by the name of the file.
    """
    return {
        "versions": {},
        "watermark": None,
        "files": hashes,
        "content_hash": hash_text(canonical_json(hashes)),
    }


def make_source_lock(settings: CorpusSettings, root: Path) -> dict[str, Any]:
    """Return the content of `corpus.lock.json` for the present content of the source.

    Making a lock is cheap: files are hashed, and the hub is asked for a commit. Equal content gives
    an equal lock, because a lock holds no time and no absolute path.

    Raises:
        FreshetError: If the source cannot be read, or the settings have keys that this kind of
            source does not read.
    """
    settings = resolve_source_kind(settings, root)
    settings.require_used_keys()
    lock: dict[str, Any] = {"source": settings.source}
    lock.update(open_source(settings, root).describe())
    return lock


def open_locked_source(settings: CorpusSettings, root: Path, lock: Mapping[str, Any]) -> Source:
    """Open the source that a lock describes.

    Raises:
        FreshetError: If the settings name another kind of source than the lock, or if the content
            of the source differs from the lock.
    """
    settings = resolve_source_kind(settings, root)
    if lock.get("source") != settings.source:
        raise FreshetError(
            f"corpus.lock.json was made from {lock.get('source')!r}, but corpus.source in "
            f"params.yaml is {settings.source!r}. Run `freshet ingest` to lock the new source."
        )

    settings.require_used_keys()
    source = open_source(settings, root, lock)
    description = source.describe()
    has_same_content = description["content_hash"] == lock.get("content_hash")
    # Only some kinds of sources describe their settings.
    current_settings = description.get("settings")
    has_same_settings = lock.get("settings", current_settings) == current_settings
    if not has_same_content or not has_same_settings:
        difference = _describe_difference(lock, description)
        raise FreshetError(
            f"the source changed since `freshet ingest`{difference}. "
            "Builds read only what the lock names: run `freshet ingest` again to accept the change."
        )
    return source


def _describe_difference(lock: Mapping[str, Any], description: Mapping[str, Any]) -> str:
    """Return the first setting, version or file that differs, as text for the error message.

    The text is empty if the lock and the description have no entries to compare.
    """
    for kind in ("settings", "versions", "files"):
        before = lock.get(kind)
        after = description.get(kind)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                old = before.get(name) or "absent"
                new = after.get(name) or "absent"
                return f" ({name}: {old} -> {new})"
    return ""
