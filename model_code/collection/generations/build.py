"""Copy the artifacts of a finished build to a new generation, a snapshot of the live index."""

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
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import MANIFEST, read_json
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, TOPICS, Hierarchy
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.kinds import open_retriever
from model_code.text.passages import TextRules


@dataclass(frozen=True)
class BuildArtifacts:
    """Paths of the artifacts of a finished build.

    Attributes:
        encoder: Folder of the encoder.
        index: Folder of the index.
        documents: File `documents.parquet` of the corpus.
        hierarchy: Folder of the hierarchy, the tree of passage clusters.
        known_queries: File of the known queries. None if the build has no such file.
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
    """Add a finished build as a new generation, which is not searched yet.

    A generation is a snapshot of the live index. All files are copied, so that a later build cannot
    change it.

    Args:
        store: Generations of the retriever.
        artifacts: Artifacts of the build.
        provenance: Origin of the build for the manifest, such as its model version.
        text: Rules by which the build cut documents into passages. None if they are unknown. Then
            no document can be added later.
        cursor: Part of the ledger that the build contains.
        choose: Function that can select an existing generation instead of a new one. It gets the
            generations of the same build, oldest first, and returns one of them or None.

    Returns:
        The new generation, or the generation that `choose` selected.

    Raises:
        FreshetError: If the artifacts do not belong together. Nothing is changed then.
    """
    with store.staging_dir() as folder:
        facts = copy_build(folder, artifacts, text)
        # A build is the base segment of its own generation, which has no added segments and no
        # removed documents.
        number = store.next_number()
        facts["base"] = number
        facts["build"] = number
        facts["segments"] = []
        facts["removed"] = None
        facts["known"] = None
        facts["tuned"] = None
        facts["provenance"] = dict(provenance)
        manifest = store.write_manifest(folder, facts, cursor)
        chosen = choose(store.find_copies(manifest))
        if chosen is not None:
            return chosen
        return store.commit(folder, number)


def copy_build(folder: Path, artifacts: BuildArtifacts, text: TextRules | None) -> dict[str, Any]:
    """Copy the artifacts of a build to a folder.

    Documents of the corpus that are not in the index are left out. The centroids of the hierarchy
    are computed from the vectors of the index, because another encoder may have made the hierarchy.

    Args:
        folder: Empty folder to write to.
        artifacts: Artifacts of the build.
        text: Rules by which the build cut documents into passages. None if they are unknown.

    Returns:
        Entries for the manifest of the folder.

    Raises:
        FingerprintMismatch: If another encoder made the vectors of the index.
        FreshetError: If the corpus does not have a document of the index, the hierarchy has another
            number of passages, or the documents were cut by other rules.
    """
    _copy_files(folder, artifacts)
    index_manifest = read_json(folder / INDEX / MANIFEST)
    retriever = open_retriever(folder / ENCODER, folder / INDEX)
    if retriever.fingerprint != index_manifest["fingerprint"]:
        raise FingerprintMismatch(
            f"{artifacts.encoder} is encoder {retriever.fingerprint[:12]}, but {artifacts.index} "
            f"was built with {index_manifest['fingerprint'][:12]}; run the stage index again"
        )

    passages = IdMap(read_json(folder / PASSAGES))
    tree = Hierarchy.load(artifacts.hierarchy)
    _check_hierarchy(artifacts.hierarchy, len(tree.leaves), passages, index_manifest["documents"])
    vectors = retriever.passage_vectors(passages.document_ids)
    _write_hierarchy(folder, tree, vectors)

    write_documents(artifacts.documents, folder / DOCUMENTS, set(passages.document_ids))
    text_settings = None
    if text is not None:
        _check_text_rules(folder, passages, text)
        text_settings = vars(text)
    return {
        "fingerprint": retriever.fingerprint,
        "documents": passages.documents,
        "passages": len(passages),
        "text": text_settings,
    }


def _copy_files(folder: Path, artifacts: BuildArtifacts) -> None:
    """Copy the files of a build that a generation keeps as they are.

    The hierarchy and the documents are not copied here, because the generation has others:
    recomputed centroids, and only the documents of the index.

    Args:
        folder: Empty folder to write to.
        artifacts: Artifacts of the build.

    Raises:
        FreshetError: If the folder of the hierarchy lacks a file.
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
    # Names of topics are optional. Without them, hits have no topics.
    if (hierarchy / TOPICS).is_file():
        shutil.copyfile(hierarchy / TOPICS, folder / HIERARCHY / TOPICS)


def _check_hierarchy(source: Path, placed: int, passages: IdMap, documents: int) -> None:
    """Raise an error unless hierarchy and index have equal numbers of documents and passages.

    Args:
        source: Folder of the hierarchy, for the error message.
        placed: Number of passages in the tree of the hierarchy.
        passages: Document of each passage, as the hierarchy lists them.
        documents: Number of documents in the index.

    Raises:
        FreshetError: If the numbers differ.
    """
    if placed != len(passages) or passages.documents != documents:
        raise FreshetError(
            f"{source} places {placed} passages of {passages.documents} documents, but the index "
            f"holds {documents} documents; run both stages again"
        )


def _write_hierarchy(folder: Path, tree: Hierarchy, vectors: np.ndarray) -> None:
    """Write the hierarchy, and the node of each passage in it.

    Args:
        folder: Folder of the generation.
        tree: Hierarchy of N passages.
        vectors: Vectors (N, H) of the index, from which the centroids are computed.
    """
    if len(vectors) != len(tree.leaves):
        raise FreshetError(
            f"the hierarchy places {len(tree.leaves)} passages, but the index holds "
            f"{len(vectors)}; run both again"
        )
    recentered = recenter_hierarchy(tree, vectors)
    recentered.save(folder / HIERARCHY)
    # Each passage keeps the path through the tree that the clustering gave it. So its leaf may not
    # be the nearest one.
    cosines = Placements.find(recentered, vectors).cosines
    Placements(recentered.paths(), cosines).save(folder)


def _check_text_rules(folder: Path, passages: IdMap, text: TextRules) -> None:
    """Raise an error unless the rules give each document as many passages as the build has.

    Documents that are added later are cut by these rules. They must be cut like the documents of
    the build.

    Args:
        folder: Folder with the documents file.
        passages: Document of each passage of the build.
        text: Rules to check.

    Raises:
        FreshetError: If a document gets another number of passages.
    """
    counts = Counter(passages.document_ids)
    columns = read_columns(folder / DOCUMENTS, "document_id", "text")
    for document_id, document_text in zip(*columns, strict=True):
        number = len(text.passage_spans(document_text))
        if number != counts[document_id]:
            raise FreshetError(
                f"document {document_id!r} has {counts[document_id]} passages in the build, but "
                f"{number} by the settings passages.words: {text.words} and stride: {text.stride}; "
                "set them as they were, or build again"
            )
