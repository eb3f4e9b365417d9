"""The interface of a source, opening the one that the settings name, and the lock of what was
ingested.

`corpus.lock.json` says what was ingested, by content: the corpus stage refuses a source that
changed since.
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


class Source(Protocol):
    """Where documents, queries and qrels come from. A new kind is a class, and its name in
    `corpus/settings.py`.

    Its constructor takes (settings, root, locked): the settings, the project's root, and the
    description that `corpus.lock.json` holds, or None while the lock is made.
    """

    def describe(self) -> dict[str, Any]:
        """What is read, cheaply: at least `versions`, `watermark` and `content_hash`; no absolute
        path, no time.
        """

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of one table as they are read, always in the same order; none for a table
        that it lacks.
        """


_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def open_source(
    settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
) -> Source:
    """The source named by `settings.source`; relative paths are resolved against `root`."""
    settings = resolve_source_kind(settings, root)
    module, _, name = SOURCES[settings.source].partition(":")
    return getattr(importlib.import_module(module), name)(settings, root, locked)


def resolve_source_kind(settings: CorpusSettings, root: Path) -> CorpusSettings:
    """The settings with the kind of source that `corpus.path` is, where they leave it open;
    FreshetError if none.
    """
    if settings.source != "auto":
        return settings
    if settings.path is None:
        return settings.replace(source="installed_packages")
    path = root / settings.path
    if path.is_dir():
        is_beir = any((path / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz"))
        return settings.replace(source="beir" if is_beir else "folder")
    if path.is_file():
        return settings.replace(source="files")
    if _HUB_NAME.fullmatch(settings.path):
        return settings.replace(source="hub", hub=settings.hub.replace(name=settings.path))
    raise FreshetError(f"{path} does not exist; corpus.path in params.yaml names it")


def describe_files(hashes: Mapping[str, str]) -> dict[str, Any]:
    """A description of files by the hash of each, with one of all of them together."""
    return {
        "versions": {},
        "watermark": None,
        "files": hashes,
        "content_hash": hash_text(canonical_json(hashes)),
    }


def make_source_lock(settings: CorpusSettings, root: Path) -> dict[str, Any]:
    """The content of `corpus.lock.json` for the source as it is now: `source`, `versions`,
    `watermark`, `content_hash`.

    Cheap (it hashes files, or asks the hub for a commit), pure (no time or absolute path), equal
    for equal content.
    """
    settings = resolve_source_kind(settings, root)
    return {"source": settings.source, **open_source(settings, root).describe()}


def open_locked_source(settings: CorpusSettings, root: Path, lock: Mapping[str, Any]) -> Source:
    """Open the source that `lock` describes; raise `FreshetError` if it is another one, or no
    longer the same.
    """
    settings = resolve_source_kind(settings, root)
    if lock.get("source") != settings.source:
        raise FreshetError(
            f"corpus.lock.json was made from {lock.get('source')!r}, but corpus.source in params.yaml is "
            f"{settings.source!r}. Run `freshet ingest` to lock the new source."
        )
    source = open_source(settings, root, lock)
    now = source.describe()
    settings_now = now.get("settings")
    if (
        now["content_hash"] != lock.get("content_hash")
        or lock.get("settings", settings_now) != settings_now
    ):
        raise FreshetError(
            f"the source changed since `freshet ingest`{_difference(lock, now)}. Builds read only what the lock names: "
            "run `freshet ingest` again to accept the change."
        )
    return source


def _difference(lock: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In words, which setting, version or file is another one than the lock's; empty where the lock
    does not tell.
    """
    for kind in ("settings", "versions", "files"):
        before, after = lock.get(kind), now.get(kind)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        if changed:
            name = changed[0]
            return f" ({name}: {before.get(name) or 'absent'} -> {after.get(name) or 'absent'})"
    return ""
