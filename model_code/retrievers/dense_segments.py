"""Segments of a dense retriever: exact indexes of new passages' vectors, however the base was indexed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_code.encoding.encoder import DocumentSide, Encoder
from model_code.errors import FreshetError
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.segments import NewPassages


def write(retriever: DenseRetriever, folder: Path, new: NewPassages) -> None:
    """Encode and index passages in `folder`."""
    document_ids, vectors = encodings(retriever, new)
    index(retriever, refined(retriever.encoder, new, document_ids, vectors), document_ids).save(folder)


def encodings(retriever: DenseRetriever, new: NewPassages) -> tuple[list[str], np.ndarray]:
    """The document of each row, and the encoder's vectors (n, H): what `new.refine` is given."""
    per_passage = retriever.index.vectors_per_passage
    document_ids = [document for document in new.document_ids for _ in range(per_passage)]
    return document_ids, DocumentSide(retriever.encoder).encode(new.texts)


def reopen(retriever: DenseRetriever, folder: Path) -> DenseRetriever:
    """The same encoder over the index in `folder`."""
    return DenseRetriever(retriever.encoder, DenseIndex.load(folder), retriever.fingerprint)


def merge(parts: Sequence[tuple[DenseRetriever, Sequence[str]]], folder: Path) -> None:
    """Index the named documents of each retriever in `folder`, with the vectors that they have."""
    vectors, document_ids = kept(parts)
    index(parts[0][0], vectors, document_ids).save(folder)


def passage_vectors(retriever: DenseRetriever, document_ids: Sequence[str]) -> np.ndarray:
    """(n, H): a passage's own vector; of several, that of the last layer, which comes last."""
    per_passage = retriever.index.vectors_per_passage
    return retriever.index.vectors[per_passage - 1 :: per_passage]


def index(retriever: DenseRetriever, vectors: np.ndarray, document_ids: Sequence[str]) -> DenseIndex:
    """An exact index beside the retriever's: new documents are too few to train an approximate one on."""
    settings: IndexSettings = replace(retriever.index.settings, factory="Flat")
    per_passage = retriever.index.vectors_per_passage
    return DenseIndex.build(vectors, document_ids, retriever.fingerprint, settings, per_passage)


def kept(parts: Sequence[tuple[DenseRetriever, Sequence[str]]]) -> tuple[np.ndarray, list[str]]:
    """The vectors of the named documents, and the document of each, part by part in the order of their rows."""
    vectors, ids = [], []
    for retriever, documents in parts:
        rows = retriever.index.ids.rows_of(documents)
        vectors.append(retriever.index.vectors[rows])
        ids += [retriever.index.document_ids[row] for row in rows.tolist()]
    return np.concatenate(vectors), ids


def refined(encoder: Encoder, new: NewPassages, document_ids: Sequence[str], vectors: np.ndarray) -> np.ndarray:
    """`vectors` (n, H), or what `new.refine` makes of them; FreshetError if that has another shape or is not finite."""
    if new.refine is None:
        return vectors
    found = new.refine(document_ids, vectors, query_vectors(encoder, new, document_ids))
    if found.shape != vectors.shape or not np.isfinite(found).all():
        raise FreshetError(f"refine gave vectors of shape {found.shape} or not finite; it must give {vectors.shape}")
    return found.astype(np.float32)


def query_vectors(encoder: Encoder, new: NewPassages, document_ids: Sequence[str]) -> list[np.ndarray]:
    """For each of `document_ids` the vectors (m, H) of the queries that it came with."""
    vectors = {document: encoder.encode(list(queries)) for document, queries in new.queries.items()}
    none = np.empty((0, encoder.dimension), np.float32)
    return [vectors.get(document, none) for document in document_ids]
