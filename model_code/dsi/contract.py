"""Contract of learned document vectors, as training leaves them and as they are indexed.

`model_code.stages.contract` checks contracts when a stage has ended. An edit of this file makes DVC
train DSI retrievers again, because DVC treats the package of a retriever kind as one dependency.
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
    """Require a folder with a finite vector of each document next to the encoder's folder."""
    check_index_folder(context.output / "document_vectors", "dsi", context)


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Require two finite vectors of each document, and a scale for documents that are added.

    The first vector is searched. The second, its representative, is the mean vector of its queries.
    Both may have any norm.

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
