"""Encoders, trained and untrained, and their indexes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assets.family import AssetFamily, markdown_table
from assets.learning_curve import learning_curve
from model_code.files import read_json


def preview_index(folder: Path) -> Mapping[str, str]:
    """What the index is, and how large."""
    facts = read_json(folder / "index" / "manifest.json")
    names = ("kind", "passages", "documents", "dimension", "vectors_per_passage", "factory", "search", "fingerprint")
    shown = {name: facts[name] for name in names if name in facts}
    files = [path for path in (folder / "index").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    rows = shown | {"files": len(files), "size": f"{size:,.1f} MB"}
    return {"index": markdown_table([{"fact": name, "value": value} for name, value in rows.items()])}


BASE_INDEX = AssetFamily(
    stage="base_index", noun="base_index", group="hierarchy", kinds=frozenset({"faiss"}), preview=preview_index
)
TRAIN = AssetFamily(
    stage="train", noun="encoder", group="retriever", kinds=frozenset({"torch"}), preview=learning_curve
)
INDEX = AssetFamily(stage="index", noun="index", group="retriever", kinds=frozenset({"faiss"}), preview=preview_index)
