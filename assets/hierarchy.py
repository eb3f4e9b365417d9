"""The tree of documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assets.family import AssetFamily, picture


def preview_hierarchy(folder: Path) -> Mapping[str, str]:
    """The tree as a picture."""
    return {"tree": picture("hierarchy", (folder / "hierarchy.png").read_bytes())}


HIERARCHY = AssetFamily(
    stage="hierarchy",
    noun="document_hierarchy",
    group="hierarchy",
    kinds=frozenset({"torch"}),
    preview=preview_hierarchy,
)
