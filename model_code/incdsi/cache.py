"""Cache folders for the data that IncDSI computes from the texts of a segment.

A cache folder with a manifest is complete, because the manifest is written last. The folder
`ENCODING` inside it holds the finished batches of an encoding, from which an interrupted
computation resumes. Every cache folder may be deleted, and is then computed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from model_code.errors import FreshetError
from model_code.files import (
    MANIFEST,
    canonical_json,
    hash_text,
    read_manifest,
    verify_checksums,
    write_manifest,
)
from model_code.project import file_lock

# Folder inside a cache folder with the finished batches of an encoding that was interrupted.
ENCODING = "encoding"


class CacheFormat(NamedTuple):
    """The format of the cache folders of one kind.

    Attributes:
        kind: Kind of the folder in its manifest.
        number: Version of the format.
    """

    kind: str
    number: int


def hashed_folder(folder: Path, prefix: str, facts: Mapping[str, Any]) -> Path:
    """Return the cache folder whose name has a prefix and a hash of facts.

    A change of any fact leads to another folder, so a cache is never out of date.

    Args:
        folder: Folder of the caches.
        prefix: First part of the name.
        facts: JSON values of everything that the cache depends on.
    """
    return folder / f"{prefix}-{hash_text(canonical_json(facts))[:16]}"


def caches_lock(folder: Path) -> AbstractContextManager[None]:
    """Return the lock of the caches in a folder. The lock file lies beside the folder."""
    return file_lock(folder.with_name(f"{folder.name}.lock"))


def fill_once(cache: Path, cache_format: CacheFormat, fill: Callable[[], None]) -> None:
    """Fill a cache folder unless it is complete, and verify its checksums.

    Only one process fills caches at a time, and others wait. Two processes would use the same
    folder of finished encodings, and the first one to end would delete it.

    Args:
        cache: The cache folder.
        cache_format: Format of the folder.
        fill: Function that writes the files, and ends with `complete_cache`.
    """
    if not (cache / MANIFEST).is_file():
        with caches_lock(cache.parent):
            # Another process may have filled the cache meanwhile.
            if not (cache / MANIFEST).is_file():
                fill()
    remedy = f"delete {cache}, which is then computed again"
    verify_checksums(cache, read_manifest(cache, cache_format.number), remedy)


def complete_cache(cache: Path, cache_format: CacheFormat) -> None:
    """Delete the encoding that a cache folder may hold, and write the manifest."""
    if (cache / ENCODING).exists():
        shutil.rmtree(cache / ENCODING)
    write_manifest(cache, cache_format.number, {"kind": cache_format.kind})


def is_intact(cache: Path, cache_format: CacheFormat) -> bool:
    """Return whether a folder is a complete and undamaged cache of a format."""
    try:
        manifest = read_manifest(cache, cache_format.number)
        verify_checksums(cache, manifest)
    except FreshetError:
        return False
    return manifest["kind"] == cache_format.kind
