"""Segments of a dsi: each new document gets its encoding, at the length that training measured, or a refined one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_code.dsi.folder import Representatives
from model_code.dsi.start import document_means
from model_code.index.dense_index import DenseIndex
from model_code.retrievers import dense_segments
from model_code.retrievers.dsi import DsiRetriever, complete, with_representatives
from model_code.retrievers.segments import NewPassages


def write(retriever: DsiRetriever, folder: Path, new: NewPassages) -> None:
    """Index a vector per document in `folder`: where none is refined the direction of its passages' mean vector, of the
    length `encoding_scale`.

    Its representative is the mean vector of its queries; without any, its own vector.
    """
    names, encoded = encodings(retriever, new)
    vectors = dense_segments.refined(retriever.encoder, new, names, encoded)
    dense_segments.index(retriever, vectors, names).save(folder)
    queries = dense_segments.query_vectors(retriever.encoder, new, names)
    means = [own.mean(axis=0) if len(own) else vector for own, vector in zip(queries, vectors, strict=True)]
    counts = np.array([len(own) for own in queries], np.int64)
    complete(folder, Representatives(np.stack(means).astype(np.float32), counts), retriever.scales)


def encodings(retriever: DsiRetriever, new: NewPassages) -> tuple[list[str], np.ndarray]:
    """The documents, and of each the vector (n, H) that it has where none is refined."""
    names = list(dict.fromkeys(new.document_ids))
    number = {name: i for i, name in enumerate(names)}
    rows = np.array([number[name] for name in new.document_ids])
    vectors = document_means(retriever.encoder.encode(new.texts), rows, len(names))
    return names, vectors * np.float32(retriever.encoding_scale)


def reopen(retriever: DsiRetriever, folder: Path) -> DsiRetriever:
    """The same encoder over the index in `folder`."""
    return with_representatives(dense_segments.reopen(retriever, folder), folder)


def merge(parts: Sequence[tuple[DsiRetriever, Sequence[str]]], folder: Path) -> None:
    """Index the named documents of each retriever in `folder`, with the vectors and representatives that they have."""
    dense_segments.merge(parts, folder)
    vectors, counts = [], []
    for retriever, documents in parts:
        rows = retriever.index.ids.rows_of(documents)
        vectors.append(retriever.representatives.vectors[rows])
        counts.append(retriever.representatives.counts[rows])
    complete(folder, Representatives(np.concatenate(vectors), np.concatenate(counts)), parts[0][0].scales)


def passage_vectors(retriever: DsiRetriever, document_ids: Sequence[str]) -> np.ndarray:
    """(n, H): the vector of each passage's document."""
    index: DenseIndex = retriever.index
    row = {document: i for i, document in enumerate(index.document_ids)}
    return index.vectors[[row[document] for document in document_ids]]
