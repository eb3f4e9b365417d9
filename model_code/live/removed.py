"""Which documents of which part can no longer be found: deleted, or put again in a newer part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from model_code.files import read_json, write_text
from model_code.live.generation import Generation

REMOVED = "removed.json"
Removed = dict[int, frozenset[str]]
"""Number of a part -> ids of its documents that are no more; parts that lack none are left out."""


def read_removed(generation: Generation) -> Removed:
    """What is removed from the parts of a generation."""
    if generation.removed is None:
        return {}
    table = read_json(generation.sibling(generation.removed) / REMOVED)
    return {int(number): frozenset(ids) for number, ids in table.items()}


def removed_by_part(generation: Generation) -> Removed:
    """The numbers of the parts that a generation searches, the base first, and what is removed from each."""
    removed = read_removed(generation)
    return {number: removed.get(number, frozenset()) for number in (generation.base, *generation.segments)}


def write_removed(folder: Path, removed: Mapping[int, frozenset[str]]) -> None:
    """Write `removed.json`; equal sets give equal bytes."""
    table = {str(number): sorted(removed[number]) for number in sorted(removed)}
    write_text(folder / REMOVED, json.dumps(table, ensure_ascii=False, separators=(",", ":")))
