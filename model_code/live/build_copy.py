"""Copy a finished build into a generation's folder, and refuse parts that do not belong together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from model_code.encoding.encoder import Encoder
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.index.dense_index import DenseIndex
from model_code.live.documents import write_documents
from model_code.live.generation import DOCUMENTS, ENCODER, HIERARCHY, INDEX


def copy_build(folder: Path, encoder: Path, index: Path, documents: Path, hierarchy: Path) -> dict[str, Any]:
    """Fill `folder` with the parts of a build and return the facts for its manifest.

    Only the documents that the index holds are taken over. FreshetError if the encoder is not the one that made the
    vectors, a document's text is missing, or the hierarchy has another number of passages.
    """
    shutil.copytree(encoder, folder / ENCODER)
    shutil.copytree(index, folder / INDEX)
    copied = DenseIndex.load(folder / INDEX)
    found = Encoder.load(folder / ENCODER).fingerprint()
    if found != copied.fingerprint:
        raise FingerprintMismatch(
            f"{encoder} is encoder {found[:12]}, but {index} was built with {copied.fingerprint[:12]}; run the stage "
            "index again"
        )
    write_documents(documents, folder / DOCUMENTS, set(copied.document_ids))
    _copy_hierarchy(hierarchy, folder / HIERARCHY, len(copied.ids))
    return {"fingerprint": found, "documents": copied.ids.documents, "passages": len(copied.ids)}


def _copy_hierarchy(source: Path, target: Path, passages: int) -> None:
    tree = Hierarchy.load(source)
    if len(tree.leaves) != passages:
        found = len(tree.leaves)
        raise FreshetError(f"{source} places {found} passages, but the index holds {passages}; run both stages again")
    target.mkdir()
    tree.save(target)
