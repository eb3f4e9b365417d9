"""Dense retrieval: one vector per passage (or several), searched by inner product. `contrastive`,
HCE and MLR.

Segments of a live collection are exact indexes of new passages' vectors, however the base was
indexed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import TokenSigns
from model_code.errors import FreshetError
from model_code.retrieval.dense_index import (
    EXACT_SETTINGS,
    CandidateVectors,
    DenseIndex,
    JoinedIndex,
)
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Ranking, Retriever

if TYPE_CHECKING:
    pass


class DenseRetriever(IndexedRetriever[np.ndarray]):
    """An encoder and the index of its vectors; see `Retriever`. Encoded queries are their vectors
    (q, H).
    """

    def __init__(self, encoder: Encoder, index: DenseIndex, fingerprint: str | None = None) -> None:
        """The index refuses every search if its vectors are not this encoder's.

        fingerprint: the encoder's, for callers that have computed it before.
        """
        self.encoder, self.index, self.fingerprint = (
            encoder,
            index,
            fingerprint or encoder.fingerprint(),
        )

    @property
    def dense(self) -> Self:
        """The retriever itself."""
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors (q, H) of query texts."""
        return self.encoder.encode(texts)

    def search_encoded(
        self, queries: np.ndarray, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """`search` for queries (q, H)."""
        if allowed is None:
            return self.index.search(queries, k, self.fingerprint)
        return self.index.search_among(queries, k, allowed, self.fingerprint)

    def score_encoded(
        self, queries: np.ndarray, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """The inner products of queries (q, H) with their candidates."""
        return self.index.scores(queries, candidates, self.fingerprint)

    def best_passage_encoded(self, query: np.ndarray, document_id: str) -> int:
        """Which of the document's passages is nearest to a query (1, H)."""
        return self.index.best_passage(query[0], document_id)

    def vectors_of(self, document_ids: Sequence[str]) -> CandidateVectors:
        """What the index holds of documents."""
        return self.index.vectors_of(document_ids)

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Encode and index passages in `folder`."""
        if self.index.tokens is None:
            (document_ids, vectors), tokens = self.encode_new_passages(new), None
        else:
            document_ids, (vectors, tokens) = (
                new.document_ids,
                self.encoder.encode_passages_with_tokens(new.texts),
            )
        if new.refine is not None:
            vectors = self._refined(new, document_ids, vectors)
        self._exact_index(vectors, document_ids, tokens).save(folder)

    def reopen(self, folder: Path) -> Self:
        """The same encoder over the index in `folder`."""
        return type(self)(self.encoder, DenseIndex.load(folder), self.fingerprint)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of each retriever in `folder`, with the vectors that they have."""
        indexes = [
            (retriever.index, retriever.index.ids.rows_of(documents))
            for retriever, documents in parts
        ]
        vectors = np.concatenate([index.vectors[rows] for index, rows in indexes])
        document_ids = [index.document_ids[row] for index, rows in indexes for row in rows.tolist()]
        tokens = TokenSigns.concatenate(
            [None if index.tokens is None else index.tokens[rows] for index, rows in indexes]
        )
        parts[0][0]._exact_index(vectors, document_ids, tokens).save(folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """The search of all documents that can be found."""
        parts: list[tuple[Any, frozenset[str]]] = [
            (segment.retriever, segment.removed) for segment in segments
        ]
        index = JoinedIndex([(retriever.index, removed) for retriever, removed in parts])
        return DenseRetriever(parts[0][0].encoder, index, parts[0][0].fingerprint)

    def encode_with_tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, TokenSigns]:
        """The vectors (q, H) of query texts, and their tokens."""
        return self.encoder.encode_with_tokens(texts)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, H): a passage's own vector; of several, that of the last layer, which comes last."""
        per_passage = self.index.vectors_per_passage
        return self.index.vectors[per_passage - 1 :: per_passage]

    def encode_new_passages(self, new: NewPassages) -> tuple[list[str], np.ndarray]:
        """The document of each row, and the encoder's vectors (n, H): what `new.refine` is given."""
        per_passage = self.index.vectors_per_passage
        document_ids = [document for document in new.document_ids for _ in range(per_passage)]
        return document_ids, self.encoder.encode_documents(new.texts)

    def encode_known_queries(
        self, new: NewPassages, document_ids: Sequence[str]
    ) -> list[np.ndarray]:
        """For each of `document_ids` the vectors (m, H) of the queries that it came with."""
        vectors = {
            document: self.encoder.encode(list(queries))
            for document, queries in new.queries.items()
        }
        none = np.empty((0, self.encoder.dimension), np.float32)
        return [vectors.get(document, none) for document in document_ids]

    def _refined(
        self, new: NewPassages, document_ids: Sequence[str], vectors: np.ndarray
    ) -> np.ndarray:
        """What `new.refine` makes of `vectors` (n, H); FreshetError if of another shape or not
        finite.
        """
        refined = new.refine(document_ids, vectors, self.encode_known_queries(new, document_ids))
        if refined.shape != vectors.shape or not np.isfinite(refined).all():
            raise FreshetError(
                f"refine gave vectors of shape {refined.shape} or not finite; it must give {vectors.shape}"
            )
        return refined.astype(np.float32)

    def _exact_index(
        self, vectors: np.ndarray, document_ids: Sequence[str], tokens: TokenSigns | None
    ) -> DenseIndex:
        """An exact index beside this one: new documents are too few to train an approximate one on."""
        return DenseIndex.build(
            vectors,
            document_ids,
            self.fingerprint,
            EXACT_SETTINGS,
            self.index.vectors_per_passage,
            tokens,
        )
