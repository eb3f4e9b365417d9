"""Encoders, trained and untrained, and their indexes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.family import AssetFamily, Check, markdown_table
from model_code.files import read_json


def preview_encoder(folder: Path) -> Mapping[str, str]:
    """The learning curve's last rows."""
    return {"history": markdown_table(read_json(folder / "history.json")[-10:])}


def checksums_hold(folder: Path) -> tuple[bool, Mapping[str, Any]]:
    """Whether the index's files are the ones its manifest names."""
    from model_code.errors import FreshetError
    from model_code.index.manifest import MANIFEST, verify

    try:
        manifest = read_json(folder / "index" / MANIFEST)
        verify(folder / "index", manifest)
    except FreshetError as error:
        return False, {"violation": str(error)}
    return True, {"fingerprint": manifest["fingerprint"]}


INDEX_CHECK = Check("checksums_hold", "The index's files are the ones that its manifest names.", checksums_hold)

BASE_INDEX = AssetFamily(
    stage="base_index", noun="base_index", group="hierarchy", kinds=frozenset({"faiss"}), checks=(INDEX_CHECK,)
)
TRAIN = AssetFamily(
    stage="train", noun="encoder", group="retriever", kinds=frozenset({"torch"}), preview=preview_encoder
)
INDEX = AssetFamily(stage="index", noun="index", group="retriever", kinds=frozenset({"faiss"}), checks=(INDEX_CHECK,))
