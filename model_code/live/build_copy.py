"""Copy a finished build into a generation's folder, and refuse parts that do not belong together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, Hierarchy
from model_code.index.id_map import IdMap
from model_code.index.manifest import MANIFEST
from model_code.live.documents import write_documents
from model_code.live.generation import DOCUMENTS, ENCODER, HIERARCHY, INDEX, PASSAGES
from model_code.retrievers.kinds import open_retriever

PARTS = {TENSORS, SUMMARY, DOCUMENT_IDS}  # of the hierarchy's folder, which holds a report and a picture too


def copy_build(folder: Path, encoder: Path, index: Path, documents: Path, hierarchy: Path) -> dict[str, Any]:
    """Fill `folder` with the parts of a build and return the facts for its manifest.

    Only the documents that the index holds are taken over. FreshetError if the encoder is not the one that made the
    vectors, a document's text is missing, or the hierarchy has another number of passages.
    """
    shutil.copytree(encoder, folder / ENCODER)
    shutil.copytree(index, folder / INDEX)
    shutil.copytree(hierarchy, folder / HIERARCHY, ignore=lambda _, names: set(names) - PARTS)
    stated, found = read_json(folder / INDEX / MANIFEST), open_retriever(folder / ENCODER, folder / INDEX).fingerprint
    if found != stated["fingerprint"]:
        raise FingerprintMismatch(
            f"{encoder} is encoder {found[:12]}, but {index} was built with {stated['fingerprint'][:12]}; run the "
            "stage index again"
        )
    passages = IdMap(read_json(folder / PASSAGES))
    _check_hierarchy(hierarchy, len(Hierarchy.load(folder / HIERARCHY).leaves), passages, stated["documents"])
    write_documents(documents, folder / DOCUMENTS, set(passages.document_ids))
    return {"fingerprint": found, "documents": passages.documents, "passages": len(passages)}


def _check_hierarchy(source: Path, placed: int, passages: IdMap, documents: int) -> None:
    if placed != len(passages) or passages.documents != documents:
        raise FreshetError(
            f"{source} places {placed} passages of {passages.documents} documents, but the index holds {documents} "
            "documents; run both stages again"
        )
