"""Files written whole or not at all, content hashes that do not depend on where a file lies, and
sealed folders.

A sealed folder says what it holds: `manifest.json` with a format version, facts, and a checksum per
other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from model_code.errors import Damaged, FreshetError

MANIFEST = "manifest.json"
BUILD = "build the folder again"
SYNCS_AT_ONCE = 8  # a journalling file system writes what waits together at once


_synced_later: ContextVar[frozenset[Path]] = ContextVar("synced_later", default=frozenset())


@contextmanager
def deferred_fsync(folder: Path) -> Iterator[None]:
    """In this block `atomic_write` writes the files below `folder` in their places, and forces none of
    them to the disk, each of which would cost a wait.

    For a folder that is being made aside and that nobody reads: call `fsync_tree` before it gets
    its name.
    """
    token = _synced_later.set(_synced_later.get() | {folder})
    try:
        yield
    finally:
        _synced_later.reset(token)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success fsync it and rename it over `path`, else
    remove it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _synced_later.get().isdisjoint(path.parents):
        yield path
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o644)
        fsync(aside)
        aside.replace(path)
        fsync(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def fsync(path: Path) -> None:
    """Force a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _syncing() -> ThreadPoolExecutor:
    """The threads that wait for the disk, which to start anew each time takes longer than they
    wait.
    """
    return ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="fsync")


os.register_at_fork(after_in_child=_syncing.cache_clear)  # where they do not run


def fsync_tree(folder: Path) -> None:
    """Force every file and folder below `folder`, and itself, to the disk."""
    paths = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    list(_syncing().map(fsync, paths))  # which raises the first error


def replace_folder(source: Path, target: Path) -> None:
    """Put the finished folder `source` in the place of `target`; a crash leaves the old, the new or
    no folder.
    """
    fsync_tree(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    source.rename(target)
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no NaN, a final newline.

    >>> canonical_json({"b": 1, "a": [2]})
    '{\\n  "a": [\\n    2\\n  ],\\n  "b": 1\\n}\\n'
    """
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any, lines: bool = True) -> None:
    """Write `value` as JSON, whole or not at all; lines: canonical, else all in one, as long lists
    need the space.
    """
    text = (
        canonical_json(value)
        if lines
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )
    write_text(path, text)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def folder_bytes(folder: Path) -> int:
    """The sizes of all files in a folder together."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def hash_text(text: str) -> str:
    """SHA-256 of a text, in hex.

    >>> hash_text("freshet")[:12]
    'ff3dfde5f93a'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_path(path: Path) -> str:
    """SHA-256 of a file, or of a folder's relative names and contents (caches and hidden files left
    out).
    """
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    digest = hashlib.sha256()
    for name, file in sorted((str(p.relative_to(path)), p) for p in path.rglob("*") if p.is_file()):
        parts = Path(name).parts
        if "__pycache__" in parts or any(part.startswith(".") for part in parts):
            continue
        digest.update(f"{name}\0{hash_path(file)}\n".encode())
    return digest.hexdigest()


def write_manifest(folder: Path, format_version: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `manifest.json` over the finished files of `folder`, and return its content as
    `read_manifest` does.
    """
    text = canonical_json({**facts, "format": format_version, "checksums": _checksums(folder)})
    write_text(folder / MANIFEST, text)
    return json.loads(text)


def add_to_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """State more facts of a sealed folder, and checksums of files that came since; those sealed are
    not read again.
    """
    manifest = read_json(folder / MANIFEST)
    checksums = manifest["checksums"]
    added = _checksums(folder, checksums)
    write_json(folder / MANIFEST, {**manifest, **facts, "checksums": checksums | added})


def read_manifest(
    folder: Path, format_version: int, *older: int, remedy: str = BUILD
) -> dict[str, Any]:
    """Read a sealed folder's manifest; FreshetError if its format is another one, not even `older`;
    Damaged if it is torn or there is none.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest["checksums"]
    except FileNotFoundError:
        raise Damaged(
            f"{folder} has no {MANIFEST}: it was not finished, or is no index", remedy
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} is torn", remedy) from None
    if manifest.get("format") not in (format_version, *older):
        stated = manifest.get("format")
        remedy = (
            "update Freshet"
            if isinstance(stated, int) and stated > format_version
            else "build it again"
        )
        raise FreshetError(
            f"{folder} has format {stated}, but this version reads {format_version}; {remedy}"
        )
    return manifest


def verify_checksums(folder: Path, manifest: dict[str, Any], remedy: str = BUILD) -> None:
    """Compare the folder's files with the manifest's checksums; Damaged names the first that
    differs.
    """
    actual, stated = _checksums(folder), manifest["checksums"]
    for name in sorted(actual.keys() | stated.keys()):
        if actual.get(name) != stated.get(name):
            change = (
                "is missing"
                if name not in actual
                else "was added"
                if name not in stated
                else "was changed"
            )
            raise Damaged(f"{folder / name} {change} since {MANIFEST} was written", remedy)


def verify_file_checksum(
    folder: Path, manifest: dict[str, Any], name: str, remedy: str = BUILD
) -> None:
    """`verify_checksums`, for one file."""
    path = folder / name
    if not path.is_file() or hash_path(path) != manifest["checksums"].get(name):
        raise Damaged(f"{path} was changed since {MANIFEST} was written", remedy)


def _checksums(folder: Path, but: Iterable[str] = ()) -> dict[str, str]:
    """Of each file below `folder` by its name there, but for the manifest and some others."""
    start = len(f"{folder}/")
    files = {f"{place}/{name}"[start:] for place, _, names in os.walk(folder) for name in names}
    return {name: hash_path(folder / name) for name in files - {MANIFEST, *but}}
