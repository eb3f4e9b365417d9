"""Atomic document ids (DSI): one learned vector per document, searched by inner product with the
encoded query.

In a segment of a live collection each new document gets its encoding, at the length that training
measured, or a refined one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from model_code.dsi.vectors import KIND, REPRESENTATIVES, document_means
from model_code.encoding.encoder import Encoder
from model_code.files import MANIFEST, add_to_manifest, read_json
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.indexed import NewPassages


class DsiRetriever(DenseRetriever):
    """A dense retriever of one learned vector per document, with what learning one for a new
    document needs.
    """

    learns_documents = True

    def __init__(
        self, encoder: Encoder, index: DenseIndex, folder: Path, fingerprint: str | None = None
    ) -> None:
        """folder: of the index, and of what lies beside it."""
        super().__init__(encoder, index, fingerprint)
        self.folder = folder
        # of before it was measured: 1
        self.encoding_scale = read_json(folder / MANIFEST).get("encoding_scale", 1.0)

    @cached_property
    def representatives(self) -> np.ndarray:
        """Z (n, H) of the documents that were trained, memory-mapped; those of a segment have none."""
        return np.load(self.folder / REPRESENTATIVES, mmap_mode="r")

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index a vector per document in `folder`: where none is refined the direction of its
        passages' mean vector, of the length `encoding_scale`.
        """
        super().write_segment(folder, new)
        add_to_manifest(folder, {"kind": KIND, "encoding_scale": self.encoding_scale})

    def reopen(self, folder: Path) -> Self:
        """The same encoder over the index in `folder`."""
        return type(self)(self.encoder, DenseIndex.load(folder), folder, self.fingerprint)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of each in `folder`, with the vectors that they have."""
        super().merge(parts, folder)
        add_to_manifest(folder, {"kind": KIND, "encoding_scale": parts[0][0].encoding_scale})

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, H): the vector of each passage's document."""
        row = {document: i for i, document in enumerate(self.index.document_ids)}
        return self.index.vectors[[row[document] for document in document_ids]]

    def encode_new_passages(self, new: NewPassages) -> tuple[list[str], np.ndarray]:
        """The documents, and of each the vector (n, H) that it has where none is refined."""
        names = list(dict.fromkeys(new.document_ids))
        number = {name: i for i, name in enumerate(names)}
        rows = np.array([number[name] for name in new.document_ids])
        vectors = document_means(self.encoder.encode_passages(new.texts), rows, len(names))
        return names, vectors * np.float32(self.encoding_scale)
