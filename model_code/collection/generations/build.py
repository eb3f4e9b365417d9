"""Copy a finished build into a generation, and refuse parts that do not belong together."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.documents import (
    DOCUMENTS,
    ENCODER,
    HIERARCHY,
    INDEX,
    PASSAGES,
    read_columns,
    write_documents,
)
from model_code.collection.segments.placements import Placements, recenter_hierarchy
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import MANIFEST, read_json
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.kinds import open_retriever
from model_code.text.passages import TextRules


@dataclass(frozen=True)
class BuildArtifacts:
    """The parts of a build: the stages' output folders, and the corpus's `documents.parquet`."""

    encoder: Path
    index: Path
    documents: Path
    hierarchy: Path


def add_build(
    collection: GenerationStore,
    parts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    cursor: LedgerCursor,
    choose: Callable[[Sequence[Generation]], Generation | None],
) -> Generation:
    """Add a finished build to a collection; nobody searches it before a `switch`.

    provenance: what the manifest shall say of the build (model version, run id, stage key); text:
    how it cut documents into passages, without which nothing can be added; cursor: up to which
    event of the log it holds all documents. choose: picks one of the generations that the
    collection has of this very build, oldest first, or none of them. The files are copied, so that
    no later build changes what is searched. FreshetError if the parts do not belong together; then
    nothing is changed.
    """
    with collection.staging_dir() as folder:
        facts = copy_build(folder, parts, text)
        number = collection.next_number()
        facts |= {
            "base": number,
            "build": number,
            "segments": [],
            "removed": None,
            "provenance": dict(provenance),
        }
        manifest = collection.write_manifest(folder, facts, cursor)
        return choose(collection.find_copies(manifest)) or collection.commit(folder, number)


def copy_build(folder: Path, parts: BuildArtifacts, text: TextRules | None) -> dict[str, Any]:
    """Fill `folder` with the parts of a build and return the facts for its manifest.

    Only the documents that the index holds are taken over, and the tree gets the centroids of the
    index's own vectors. FreshetError if the encoder is not the one that made the vectors, a
    document's text is missing, the hierarchy has another number of passages, or the documents were
    not cut into passages as `text` says.
    """
    hierarchy = parts.hierarchy
    if missing := [
        name for name in (DOCUMENT_IDS, SUMMARY, TENSORS) if not (hierarchy / name).is_file()
    ]:
        raise FreshetError(
            f"{hierarchy} has no {missing[0]}: an older version built it; run the stage hierarchy again"
        )
    shutil.copytree(parts.encoder, folder / ENCODER)
    shutil.copytree(parts.index, folder / INDEX)
    (folder / HIERARCHY).mkdir()
    shutil.copyfile(hierarchy / DOCUMENT_IDS, folder / PASSAGES)
    stated, opened = (
        read_json(folder / INDEX / MANIFEST),
        open_retriever(folder / ENCODER, folder / INDEX),
    )
    if opened.fingerprint != stated["fingerprint"]:
        raise FingerprintMismatch(
            f"{parts.encoder} is encoder {opened.fingerprint[:12]}, but {parts.index} was built with "
            f"{stated['fingerprint'][:12]}; run the stage index again"
        )
    if (hierarchy / TOPICS).is_file():  # which builds of earlier versions have not
        shutil.copyfile(hierarchy / TOPICS, folder / HIERARCHY / TOPICS)
    passages, tree = IdMap(read_json(folder / PASSAGES)), Hierarchy.load(hierarchy)
    _check_hierarchy(hierarchy, len(tree.leaves), passages, stated["documents"])
    _place(folder, tree, opened.passage_vectors(passages.document_ids))
    write_documents(parts.documents, folder / DOCUMENTS, set(passages.document_ids))
    _check_text(folder, passages, text)
    facts = {
        "fingerprint": opened.fingerprint,
        "documents": passages.documents,
        "passages": len(passages),
    }
    return facts | {"text": None if text is None else vars(text)}


def _check_hierarchy(source: Path, placed: int, passages: IdMap, documents: int) -> None:
    if placed != len(passages) or passages.documents != documents:
        raise FreshetError(
            f"{source} places {placed} passages of {passages.documents} documents, but the index holds {documents} "
            "documents; run both stages again"
        )


def _place(folder: Path, tree: Hierarchy, vectors: np.ndarray) -> None:
    if len(vectors) != len(tree.leaves):
        raise FreshetError(
            f"the hierarchy places {len(tree.leaves)} passages, but the index holds {len(vectors)}; run both again"
        )
    centred = recenter_hierarchy(tree, vectors)
    centred.save(folder / HIERARCHY)
    Placements(centred.paths(), Placements.find(centred, vectors).cosines).save(folder)


def _check_text(folder: Path, passages: IdMap, text: TextRules | None) -> None:
    """Compare the number of passages of every document with what the rules give: what is added must
    be cut alike.
    """
    if text is None:
        return
    counts = Counter(passages.document_ids)
    for document, body in zip(
        *read_columns(folder / DOCUMENTS, "document_id", "text"), strict=True
    ):
        if (places := len(text.passage_spans(body))) != counts[document]:
            raise FreshetError(
                f"document {document!r} has {counts[document]} passages in the build, but {places} by the "
                f"settings passages.words: {text.words} and stride: {text.stride}; set them as they were, or build anew"
            )
