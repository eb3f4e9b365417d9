"""Atomic writes, content hashes that do not depend on a file's location, and sealed folders.

A sealed folder describes itself: `manifest.json` holds a format version, facts, and a checksum of
every other file.
"""

from __future__ import annotations

import fcntl
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
from typing import TYPE_CHECKING, Any

from model_code.errors import Damaged, FreshetError

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.json"
# Default remedy in the messages about damaged folders.
BUILD = "build the folder again"

# Number of threads that wait for the disk. A journalling file system commits parallel fsync calls
# together, so threads save time.
FSYNC_THREADS = 8

# Folders in which files are not forced to the disk one by one.
_deferred_folders: ContextVar[frozenset[Path]] = ContextVar("deferred_folders", default=frozenset())


@contextmanager
def deferred_fsync(folder: Path) -> Iterator[None]:
    """Let `atomic_write` write files below `folder` in place, without forcing each to the disk.

    This saves a wait for the disk per file. Use it only for a folder that no process reads yet.
    Call `fsync_tree` before the folder gets its final name.
    """
    token = _deferred_folders.set(_deferred_folders.get() | {folder})
    try:
        yield
    finally:
        _deferred_folders.reset(token)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block succeeds.

    The content is forced to the disk before the rename. If the block fails, the temporary file is
    removed and `path` keeps its content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_deferred = not _deferred_folders.get().isdisjoint(path.parents)
    if is_deferred:
        yield path
        return

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def fsync(path: Path) -> None:
    """Force the content of a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _fsync_pool() -> ThreadPoolExecutor:
    """Return the pool of threads that wait for the disk.

    The pool is kept, because starting threads takes longer than their work.
    """
    return ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="fsync")


# A forked process has no copy of the threads. It creates a new pool.
os.register_at_fork(after_in_child=_fsync_pool.cache_clear)


def fsync_tree(folder: Path) -> None:
    """Force a folder and every file and folder below it to the disk."""
    paths = [folder]
    for path in folder.rglob("*"):
        if not path.is_symlink():
            paths.append(path)
    # Reading the results raises the first error.
    list(_fsync_pool().map(fsync, paths))


def replace_folder(source: Path, target: Path) -> None:
    """Move the finished folder `source` to `target`, which may exist.

    After a crash, `target` is the old folder, the new one, or missing. It is never a mixture.
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
    """Return JSON that is equal for equal values: sorted keys, no NaN, a final newline.

    >>> canonical_json({"b": 1, "a": [2]})
    '{\\n  "a": [\\n    2\\n  ],\\n  "b": 1\\n}\\n'
    """
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any, lines: bool = True) -> None:
    """Write a value as JSON, atomically.

    Args:
        path: The file.
        value: The value.
        lines: Write canonical JSON. False: one line, which is smaller for long lists.
    """
    if lines:
        text = canonical_json(value)
    else:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    write_text(path, text)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array atomically in NumPy's format `.npy`, whatever the name of the file."""
    # Commands that write no array start faster without NumPy.
    import numpy as np

    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array)


def append_line(path: Path, line: str) -> None:
    """Append a line of text to a file, and wait until it is on the disk.

    A crash may have cut off the last line of the file. The new line does not continue it. Lines of
    other processes and threads are complete, because the file is locked meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        content = line.encode() + b"\n"
        size = stream.seek(0, os.SEEK_END)
        if size:
            stream.seek(size - 1)
            last_line_is_cut_off = stream.read(1) != b"\n"
            if last_line_is_cut_off:
                content = b"\n" + content
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text, in hex.

    >>> hash_text("freshet")[:12]
    'ff3dfde5f93a'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's relative names and contents, in hex.

    Caches of Python and hidden files and folders are ignored.
    """
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    files = []
    for file in path.rglob("*"):
        if file.is_file():
            files.append((str(file.relative_to(path)), file))

    digest = hashlib.sha256()
    for name, file in sorted(files):
        parts = Path(name).parts
        if "__pycache__" in parts or any(part.startswith(".") for part in parts):
            continue
        digest.update(f"{name}\0{hash_path(file)}\n".encode())
    return digest.hexdigest()


def write_manifest(folder: Path, format_version: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Seal a folder: write `manifest.json` with facts and the checksums of all its files.

    Args:
        folder: The folder, whose files are finished.
        format_version: Version of the folder's format, which `read_manifest` compares.
        facts: Further keys of the manifest.

    Returns:
        The content of the manifest, as `read_manifest` returns it.
    """
    manifest = dict(facts)
    manifest["format"] = format_version
    manifest["checksums"] = _checksums(folder)
    text = canonical_json(manifest)
    write_text(folder / MANIFEST, text)
    return json.loads(text)


def add_to_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Add facts and the checksums of new files to a manifest.

    Files that the manifest has checksums of already are not read again.
    """
    manifest = read_json(folder / MANIFEST)
    checksums = manifest["checksums"]
    checksums.update(_checksums(folder, ignored=checksums))
    manifest.update(facts)
    manifest["checksums"] = checksums
    write_json(folder / MANIFEST, manifest)


def read_manifest(
    folder: Path,
    format_version: int,
    *older: int,
    remedy: str = BUILD,
    other_format_remedy: str | None = None,
) -> dict[str, Any]:
    """Read the manifest of a sealed folder.

    Args:
        folder: The folder.
        format_version: The format that this version of Freshet writes.
        *older: Further formats that this version of Freshet reads.
        remedy: What repairs the folder, for the message.
        other_format_remedy: What to do about another format, for the message; None means to build
            the folder again, or to update Freshet.

    Raises:
        Damaged: If there is no manifest, or it is cut off.
        FreshetError: If the folder has another format.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        # A manifest without this key is cut off as well.
        _ = manifest["checksums"]
    except FileNotFoundError:
        raise Damaged(
            f"{folder} has no {MANIFEST}: it was not finished, or is no index", remedy
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} is torn", remedy) from None

    found_version = manifest.get("format")
    if found_version not in (format_version, *older):
        is_newer = isinstance(found_version, int) and found_version > format_version
        advice = other_format_remedy
        if advice is None:
            advice = "update Freshet" if is_newer else "build it again"
        raise FreshetError(
            f"{folder} has format {found_version}, but this version reads {format_version}; "
            f"{advice}"
        )
    return manifest


def verify_checksums(folder: Path, manifest: dict[str, Any], remedy: str = BUILD) -> None:
    """Compare all files of a folder with its manifest.

    Raises:
        Damaged: If a file is missing, new or changed. The message names the first one.
    """
    actual = _checksums(folder)
    expected = manifest["checksums"]
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) == expected.get(name):
            continue
        if name not in actual:
            change = "is missing"
        elif name not in expected:
            change = "was added"
        else:
            change = "was changed"
        raise Damaged(f"{folder / name} {change} since {MANIFEST} was written", remedy)


def verify_file_checksum(
    folder: Path, manifest: dict[str, Any], name: str, remedy: str = BUILD
) -> None:
    """Compare one file of a folder with its manifest.

    Raises:
        Damaged: If the file is missing or changed.
    """
    path = folder / name
    if not path.is_file() or hash_path(path) != manifest["checksums"].get(name):
        raise Damaged(f"{path} was changed since {MANIFEST} was written", remedy)


def _checksums(folder: Path, ignored: Iterable[str] = ()) -> dict[str, str]:
    """Return the hash of each file below `folder` by its relative name, without the manifest."""
    # Slicing the joined names is faster than making a relative path of each.
    prefix_length = len(f"{folder}/")
    names = set()
    for parent, _, file_names in os.walk(folder):
        for file_name in file_names:
            names.add(f"{parent}/{file_name}"[prefix_length:])
    return {name: hash_path(folder / name) for name in names - {MANIFEST, *ignored}}
