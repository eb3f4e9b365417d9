"""The DSI retriever: one learned vector per document, searched by inner product with the query.

Documents that are added later get their encoding, scaled to the norm that training measured, or a
vector that IncDSI solved for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from model_code.dsi.vectors import KIND, REPRESENTATIVES, document_means
from model_code.encoding.query_encoder import SearchEncoder
from model_code.files import MANIFEST, add_to_manifest, read_json
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.indexed import NewPassages


class DsiRetriever(DenseRetriever):
    """A dense retriever with one learned vector per document, to which documents can be added.

    Attributes:
        folder: Folder of the index, which also holds the mean query vector of each document.
        encoding_scale: Norm that the encoding of an added document gets, unless IncDSI solves for
            its vector.
    """

    learns_documents = True

    def __init__(
        self,
        encoder: SearchEncoder,
        index: DenseIndex,
        folder: Path,
        fingerprint: str | None = None,
    ) -> None:
        """Combine an encoder with an index.

        Args:
            encoder: Encodes queries and added documents.
            index: One row per document.
            folder: Folder of the index, with the files that lie beside it.
            fingerprint: Fingerprint of the encoder, if the caller has computed it before.
        """
        super().__init__(encoder, index, fingerprint)
        self.folder = folder
        self.encoding_scale: float = read_json(folder / MANIFEST)["encoding_scale"]

    @cached_property
    def representatives(self) -> np.ndarray:
        """The mean query vector of each trained document, (n, H), memory-mapped.

        IncDSI calls them representatives Z, and protects the documents' queries by them.

        Only the index of the build has them. Segments that were added later have none.
        """
        return np.load(self.folder / REPRESENTATIVES, mmap_mode="r")

    def encode_ahead(self, new: NewPassages) -> None:
        """Encode nothing ahead: only the mean vector of a document's passages is indexed."""

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index one vector of each new document in `folder`; see `encode_new_passages`."""
        super().write_segment(folder, new)
        add_to_manifest(folder, {"kind": KIND, "encoding_scale": self.encoding_scale})

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same encoder over the index in another folder."""
        return type(self)(self.encoder, DenseIndex.load(folder), folder, self.fingerprint)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of several retrievers in `folder`, with their vectors."""
        super().merge(sources, folder)
        first_retriever, _ = sources[0]
        add_to_manifest(folder, {"kind": KIND, "encoding_scale": first_retriever.encoding_scale})

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return the vector of each passage's document, (n, H)."""
        row_of = {document: row for row, document in enumerate(self.index.document_ids)}
        return self.index.vectors[[row_of[document] for document in document_ids]]

    def encode_new_passages(self, new: NewPassages) -> tuple[list[str], np.ndarray]:
        """Return the new documents and their encodings, which IncDSI may replace afterwards.

        A document's vector has the direction of its passages' mean and the norm `encoding_scale`.

        Returns:
            Document ids, and vectors (n, H) float32.
        """
        document_ids = list(dict.fromkeys(new.document_ids))
        number_of = {document_id: number for number, document_id in enumerate(document_ids)}
        # Each passage belongs to a document, given by its number.
        owners = np.array([number_of[document_id] for document_id in new.document_ids])
        passage_vectors = self.encoder.encode_documents_by_last_layer(new.texts)
        means = document_means(passage_vectors, owners, len(document_ids))
        return document_ids, means * np.float32(self.encoding_scale)
