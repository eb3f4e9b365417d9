"""Copy a finished build into a new generation."""

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
from model_code.corpus.known_queries import KNOWN_QUERIES
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import MANIFEST, read_json
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.kinds import open_retriever
from model_code.text.passages import TextRules


@dataclass(frozen=True)
class BuildArtifacts:
    """Where the parts of a finished build lie.

    Attributes:
        encoder: Folder of the encoder.
        index: Folder of the index.
        documents: The file `documents.parquet` of the corpus.
        hierarchy: Folder of the hierarchy.
        known_queries: File of the known queries; None if the build knows none.
    """

    encoder: Path
    index: Path
    documents: Path
    hierarchy: Path
    known_queries: Path | None = None


def add_build(
    store: GenerationStore,
    artifacts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    cursor: LedgerCursor,
    choose: Callable[[Sequence[Generation]], Generation | None],
) -> Generation:
    """Add a finished build as a generation, which is not current yet.

    All files are copied, so that no later build changes what is searched.

    Args:
        store: Generations of the retriever.
        artifacts: Parts of the build.
        provenance: What the manifest says about the build, such as its model version.
        text: Rules by which the build cut documents into passages. Without them, no document can
            be added later.
        cursor: Ledger cursor up to which the build holds all documents.
        choose: Gets the existing generations of the same build, oldest first, and returns the one
            to use instead of a new one, or None.

    Returns:
        The new generation, or the chosen one.

    Raises:
        FreshetError: If the parts do not belong together; then nothing is changed.
    """
    with store.staging_dir() as folder:
        facts = copy_build(folder, artifacts, text)
        number = store.next_number()
        facts["base"] = number
        facts["build"] = number
        facts["segments"] = []
        facts["removed"] = None
        facts["known"] = None
        facts["provenance"] = dict(provenance)
        manifest = store.write_manifest(folder, facts, cursor)
        chosen = choose(store.find_copies(manifest))
        if chosen is not None:
            return chosen
        return store.commit(folder, number)


def copy_build(folder: Path, artifacts: BuildArtifacts, text: TextRules | None) -> dict[str, Any]:
    """Copy the parts of a build into a folder, and return entries for the manifest.

    Only documents in the index are copied. The hierarchy gets the centroids of the index's own
    vectors.

    Args:
        folder: Empty folder.
        artifacts: Parts of the build.
        text: Rules by which the build cut documents into passages; None if unknown.

    Raises:
        FingerprintMismatch: If the encoder is not the one that made the vectors.
        FreshetError: If a document is missing in the corpus, the hierarchy places another number
            of passages, or the documents were cut by other rules.
    """
    hierarchy = artifacts.hierarchy
    for name in (DOCUMENT_IDS, SUMMARY, TENSORS):
        if not (hierarchy / name).is_file():
            raise FreshetError(f"{hierarchy} has no {name}; run the stage hierarchy again")
    shutil.copytree(artifacts.encoder, folder / ENCODER)
    shutil.copytree(artifacts.index, folder / INDEX)
    if artifacts.known_queries is not None:
        shutil.copyfile(artifacts.known_queries, folder / KNOWN_QUERIES)
    (folder / HIERARCHY).mkdir()
    shutil.copyfile(hierarchy / DOCUMENT_IDS, folder / PASSAGES)
    # Topics are optional: without them, hits name none.
    if (hierarchy / TOPICS).is_file():
        shutil.copyfile(hierarchy / TOPICS, folder / HIERARCHY / TOPICS)

    index_manifest = read_json(folder / INDEX / MANIFEST)
    retriever = open_retriever(folder / ENCODER, folder / INDEX)
    if retriever.fingerprint != index_manifest["fingerprint"]:
        raise FingerprintMismatch(
            f"{artifacts.encoder} is encoder {retriever.fingerprint[:12]}, but {artifacts.index} "
            f"was built with {index_manifest['fingerprint'][:12]}; run the stage index again"
        )

    passages = IdMap(read_json(folder / PASSAGES))
    tree = Hierarchy.load(hierarchy)
    _check_hierarchy(hierarchy, len(tree.leaves), passages, index_manifest["documents"])
    _write_hierarchy(folder, tree, retriever.passage_vectors(passages.document_ids))
    write_documents(artifacts.documents, folder / DOCUMENTS, set(passages.document_ids))
    if text is not None:
        _check_text_rules(folder, passages, text)
    return {
        "fingerprint": retriever.fingerprint,
        "documents": passages.documents,
        "passages": len(passages),
        "text": None if text is None else vars(text),
    }


def _check_hierarchy(source: Path, placed: int, passages: IdMap, documents: int) -> None:
    """Require that hierarchy and index have the same documents and passages.

    Args:
        source: Folder of the hierarchy.
        placed: Number of passages that the hierarchy places.
        passages: Document of each of these passages.
        documents: Number of documents in the index.
    """
    if placed != len(passages) or passages.documents != documents:
        raise FreshetError(
            f"{source} places {placed} passages of {passages.documents} documents, but the index "
            f"holds {documents} documents; run both stages again"
        )


def _write_hierarchy(folder: Path, tree: Hierarchy, vectors: np.ndarray) -> None:
    """Write the hierarchy with the centroids of `vectors` (N, H), and the passages' placements."""
    if len(vectors) != len(tree.leaves):
        raise FreshetError(
            f"the hierarchy places {len(tree.leaves)} passages, but the index holds "
            f"{len(vectors)}; run both again"
        )
    recentered = recenter_hierarchy(tree, vectors)
    recentered.save(folder / HIERARCHY)
    # Passages keep the leaves of the clustering, which need not be the nearest ones.
    cosines = Placements.find(recentered, vectors).cosines
    Placements(recentered.paths(), cosines).save(folder)


def _check_text_rules(folder: Path, passages: IdMap, text: TextRules) -> None:
    """Require that the rules give each document its number of passages in the build.

    Documents that are added later are cut by these rules, and have to be cut alike.
    """
    counts = Counter(passages.document_ids)
    columns = read_columns(folder / DOCUMENTS, "document_id", "text")
    for document_id, document_text in zip(*columns, strict=True):
        number = len(text.passage_spans(document_text))
        if number != counts[document_id]:
            raise FreshetError(
                f"document {document_id!r} has {counts[document_id]} passages in the build, but "
                f"{number} by the settings passages.words: {text.words} and stride: {text.stride}; "
                "set them as they were, or build anew"
            )
