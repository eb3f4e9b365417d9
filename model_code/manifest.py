"""A folder that says what it holds: `manifest.json` with a format version, facts, and a checksum per other file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model_code.errors import Damaged, FreshetError
from model_code.files import canonical_json, hash_path, read_json, write_json, write_text

MANIFEST = "manifest.json"
BUILD = "build the folder again"


def seal(folder: Path, format_version: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Write `manifest.json` over the finished files of `folder`, and return its content as `read_manifest` does."""
    text = canonical_json({**facts, "format": format_version, "checksums": _checksums(folder)})
    write_text(folder / MANIFEST, text)
    return json.loads(text)


def add_facts(folder: Path, facts: dict[str, Any]) -> None:
    """State more facts of a sealed folder, and checksums of files that came since; those sealed are not read again."""
    manifest = read_json(folder / MANIFEST)
    checksums = manifest["checksums"]
    added = _checksums(folder, checksums)
    write_json(folder / MANIFEST, {**manifest, **facts, "checksums": checksums | added})


def read_manifest(folder: Path, format_version: int, *older: int, remedy: str = BUILD) -> dict[str, Any]:
    """Read a sealed folder's manifest; FreshetError if its format is another one, not even `older`; Damaged if it is
    torn or there is none.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest["checksums"]
    except FileNotFoundError:
        raise Damaged(f"{folder} has no {MANIFEST}: it was not finished, or is no index", remedy) from None
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} is torn", remedy) from None
    if manifest.get("format") not in (format_version, *older):
        found = manifest.get("format")
        remedy = "update Freshet" if isinstance(found, int) and found > format_version else "build it again"
        raise FreshetError(f"{folder} has format {found}, but this version reads {format_version}; {remedy}")
    return manifest


def verify(folder: Path, manifest: dict[str, Any], remedy: str = BUILD) -> None:
    """Compare the folder's files with the manifest's checksums; Damaged names the first that differs."""
    found, stated = _checksums(folder), manifest["checksums"]
    for name in sorted(found.keys() | stated.keys()):
        if found.get(name) != stated.get(name):
            what = "is missing" if name not in found else "was added" if name not in stated else "was changed"
            raise Damaged(f"{folder / name} {what} since {MANIFEST} was written", remedy)


def verify_file(folder: Path, manifest: dict[str, Any], name: str, remedy: str = BUILD) -> None:
    """`verify`, for one file."""
    path = folder / name
    if not path.is_file() or hash_path(path) != manifest["checksums"].get(name):
        raise Damaged(f"{path} was changed since {MANIFEST} was written", remedy)


def _checksums(folder: Path, but: Iterable[str] = ()) -> dict[str, str]:
    """Of each file below `folder` by its name there, but for the manifest and some others."""
    start = len(f"{folder}/")
    found = {f"{place}/{name}"[start:] for place, _, names in os.walk(folder) for name in names}
    return {name: hash_path(folder / name) for name in found - {MANIFEST, *but}}
