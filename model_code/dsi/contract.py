"""Contract of learned document vectors, as training leaves them and as they are indexed.

`model_code.stages.contract` checks contracts when a stage has ended. An edit of this file trains
DSI retrievers again, since DVC knows a kind's package as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.checks.indexes import check_index_folder, load_array
from model_code.checks.rules import require, require_finite
from model_code.context import StageContext
from model_code.dsi.vectors import REPRESENTATIVES
from model_code.files import MANIFEST, read_json
from model_code.retrieval.dense_index import DOCUMENT_IDS


def check_trained(context: StageContext) -> None:
    """Require a sound folder of document vectors next to the encoder's folder."""
    check_index_folder(context.output / "document_vectors", "dsi", context)


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Require a finite vector and representative of each document, and the scale for additions.

    Vectors may have any norm.

    Args:
        folder: Folder of the vectors.
        manifest: Manifest of the folder.
        documents: The document of each passage, in the corpus's order.
    """
    ids = read_json(folder / DOCUMENT_IDS)
    require(
        sorted(ids) == sorted(set(documents)),
        f"{folder.name}/{DOCUMENT_IDS} must name each document once",
    )

    for name in ("vectors.npy", REPRESENTATIVES):
        array = load_array(folder, name)
        require(
            len(array) == len(ids),
            f"{folder.name}/{name} must have {len(ids):,} rows, not {len(array):,}",
        )
        require_finite(f"{folder.name}/{name}", array)

    require(
        manifest["encoding_scale"] > 0,
        f"{folder.name}/{MANIFEST} must state an encoding_scale above 0",
    )
