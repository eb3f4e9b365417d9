"""Dense retrieval: passage vectors, searched by inner product.

Encoders of contrastive training and of HCE make one vector per passage. Encoders of MLR make one
vector per indexed layer of the model. The index of a build may be approximate. The segments that a
live collection adds later are always searched exactly.

For late interaction an index also stores token signs: one bit per dimension of each word's vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.encoding.ahead import Encoding, EncodingsAhead
from model_code.encoding.query_encoder import SearchEncoder
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
from model_code.settings import require


class DenseRetriever(IndexedRetriever[np.ndarray]):
    """An encoder and the index of its vectors. Encoded queries are vectors (q, H)."""

    def __init__(
        self, encoder: SearchEncoder, index: DenseIndex, fingerprint: str | None = None
    ) -> None:
        """Combine an encoder with an index.

        If the vectors of the index come from another encoder, every search raises an error.

        Args:
            encoder: Encoder of queries and new passages.
            index: Index of passage vectors.
            fingerprint: The encoder's fingerprint, if it is already known.
        """
        self.encoder = encoder
        self.index = index
        self.fingerprint = fingerprint or encoder.fingerprint()
        self._ahead = EncodingsAhead()

    @property
    def dense(self) -> Self:
        """This retriever itself: the interface asks each retriever for its dense one."""
        return self

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Encode query texts as vectors (q, H)."""
        return self.encoder.encode_queries(texts)

    def normalize_query(self, vector: Sequence[float]) -> np.ndarray:
        """Turn a user's vector into an encoded query: a float32 array (1, H) of length 1.

        Args:
            vector: H numbers of any length, where H is the dimension of the index.

        Raises:
            SettingsError: If the vector has another dimension, a number that is not finite, or
                length 0.
        """
        dimension = self.index.dimension
        try:
            query = np.asarray(vector, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            query = np.zeros(0)
        require(
            query.shape == (dimension,),
            f"the vector must be a list of {dimension} numbers, as the encoder makes them",
        )
        largest = float(np.abs(query).max())
        require(
            0 < largest < np.inf,
            f"the largest absolute value of the vector is {largest:g}; "
            "it must be finite and above 0",
        )
        # The squares of very large numbers would overflow, so the vector is scaled down first.
        scaled = query / largest
        unit = scaled / np.linalg.norm(scaled)
        return unit[np.newaxis].astype(np.float32)

    def encode_queries_with_signs(self, texts: Sequence[str]) -> tuple[np.ndarray, TokenSigns]:
        """Return the vectors (q, H) of query texts, and their token signs."""
        return self.encoder.encode_queries_with_signs(texts)

    def search_encoded(
        self, queries: np.ndarray, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents for each query vector (q, H), best first."""
        if allowed is None:
            return self.index.search(queries, k, self.fingerprint)
        return self.index.search_among(queries, k, allowed, self.fingerprint)

    def score_encoded(
        self, queries: np.ndarray, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Return the scores of each query's candidates, for query vectors (q, H).

        A score is the inner product with the candidate's nearest vector.
        """
        return self.index.scores(queries, candidates, self.fingerprint)

    def best_passage_encoded(self, query: np.ndarray, document_id: str) -> int:
        """Return the number of the document's passage nearest to a query vector (1, H)."""
        return self.index.best_passage(query[0], document_id)

    def vectors_of(self, document_ids: Sequence[str]) -> CandidateVectors:
        """Return the vectors of different documents, and their token signs if there are any."""
        return self.index.vectors_of(document_ids)

    def encode_ahead(self, new: NewPassages) -> None:
        """Encode new passages now, so that `write_segment` finds their encodings later."""
        self._ahead.make(new.texts, self._encode_texts)

    def keep_encodings(
        self,
        stored: IndexedRetriever[Any],
        former: NewPassages,
        new: NewPassages,
        solved: Set[str],
    ) -> None:
        """Keep stored encodings of passages; see `IndexedRetriever.keep_encodings`.

        A vector that was learned for a document is no encoding, and is not kept.
        """
        if self.learns_documents:
            return
        encoded = [name not in solved for name in former.document_ids]
        self._keep_unchanged(
            stored,
            list(compress(former.document_ids, encoded)),
            list(compress(former.texts, encoded)),
            new.texts,
        )

    def _keep_unchanged(
        self,
        stored: Any,
        document_ids: Sequence[str],
        former_texts: Sequence[str],
        new_texts: Sequence[str],
    ) -> None:
        """Keep the stored encodings of texts of which the encoder reads the same tokens again.

        Args:
            stored: Retriever whose index has the encodings.
            document_ids: Document of each former text. The texts of a document are adjacent and in
                the order of its rows.
            former_texts: Texts that were encoded.
            new_texts: Texts that are encoded next.
        """
        index: DenseIndex = stored.index
        vectors_per_text = index.vectors_per_passage
        rows_of_former: list[np.ndarray] = []
        for document_id, number in Counter(document_ids).items():
            rows = index.ids.rows_of([document_id])
            # Documents that were cut into passages by other rules cannot be compared.
            if len(rows) != number * vectors_per_text:
                return
            rows_of_former.extend(rows.reshape(number, vectors_per_text))

        rows_by_tokens: dict[tuple[int, ...], np.ndarray] = {}
        for tokens, rows in zip(
            self.encoder.document_token_ids(former_texts), rows_of_former, strict=True
        ):
            rows_by_tokens[tuple(tokens)] = rows

        encodings: dict[str, Encoding] = {}
        for text, tokens in zip(new_texts, self.encoder.document_token_ids(new_texts), strict=True):
            unchanged_rows = rows_by_tokens.get(tuple(tokens))
            if unchanged_rows is not None:
                signs = None
                if index.token_signs is not None:
                    signs = index.token_signs[unchanged_rows]
                encodings[text] = Encoding(np.array(index.vectors[unchanged_rows]), signs)
        self._ahead.keep(encodings)

    def _encode_texts(self, texts: Sequence[str]) -> Encoding:
        """Return the vectors of new passages, and their token signs if the index has some."""
        if self.index.token_signs is None:
            return Encoding(self.encoder.encode_documents(texts), None)
        return Encoding(*self.encoder.encode_documents_with_signs(texts))

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Encode new passages and index them in `folder`.

        If the index of the build has token signs, the segment has them as well.
        """
        token_signs = None
        if self.index.token_signs is None:
            document_ids, vectors = self.encode_new_passages(new)
        else:
            # An index with token signs has one vector per passage, so each passage is one row.
            document_ids = list(new.document_ids)
            vectors, token_signs = self._ahead.take(new.texts, self._encode_texts)
        if new.refine is not None:
            vectors = self._refine(new, document_ids, vectors)
        self._build_exact_index(vectors, document_ids, token_signs).save(folder)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same encoder over the index in another folder."""
        return type(self)(self.encoder, DenseIndex.load(folder), self.fingerprint)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Write one index of selected documents of several retrievers, without encoding.

        Args:
            sources: Retrievers, each with the ids of the documents to take from it.
            folder: Folder of the index.
        """
        vectors = []
        token_signs: list[TokenSigns | None] = []
        document_ids = []
        for retriever, selected_ids in sources:
            index = retriever.index
            rows = index.ids.rows_of(selected_ids)
            vectors.append(index.vectors[rows])
            selected_signs = None
            if index.token_signs is not None:
                selected_signs = index.token_signs[rows]
            token_signs.append(selected_signs)
            document_ids.extend(index.document_ids[row] for row in rows.tolist())

        first_retriever, _ = sources[0]
        merged = first_retriever._build_exact_index(
            np.concatenate(vectors), document_ids, TokenSigns.concatenate(token_signs)
        )
        merged.save(folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one retriever that searches all segments as one index."""
        indexes = []
        for segment in segments:
            retriever: Any = segment.retriever
            indexes.append((retriever.index, segment.removed))
        first_retriever: Any = segments[0].retriever
        return DenseRetriever(
            first_retriever.encoder, JoinedIndex(indexes), first_retriever.fingerprint
        )

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return one vector per passage, shape (n, H).

        If a passage has several vectors, one per layer, this is the vector of the last layer.
        """
        vectors_per_passage = self.index.vectors_per_passage
        row_of_last_layer = vectors_per_passage - 1
        return self.index.vectors[row_of_last_layer::vectors_per_passage]

    def encode_new_passages(self, new: NewPassages) -> tuple[list[str], np.ndarray]:
        """Return the encoder's vectors of new passages, as they are before IncDSI may change them.

        Returns:
            The document id of each row, and the encoder's vectors, shape (n, H). A passage has
            `vectors_per_passage` consecutive rows.
        """
        document_ids = []
        for document_id in new.document_ids:
            document_ids.extend([document_id] * self.index.vectors_per_passage)
        return document_ids, self._ahead.take(new.texts, self._encode_texts).vectors

    def encode_known_queries(
        self, new: NewPassages, document_ids: Sequence[str]
    ) -> list[np.ndarray]:
        """Return the vectors of the known queries of each document, which IncDSI needs.

        PyTorch encodes them, so that equal texts give equal bits in any grouping.

        Args:
            new: New passages, with the known queries of their documents.
            document_ids: Document ids. An id may occur several times.

        Returns:
            For each entry of `document_ids` an array of shape (m, H). m is the number of the
            document's known queries, which may be 0.
        """
        vectors_of = {
            document_id: self.encoder.pytorch.encode_queries(list(queries))
            for document_id, queries in new.queries.items()
        }
        no_vectors = np.empty((0, self.encoder.dimension), np.float32)
        return [vectors_of.get(document_id, no_vectors) for document_id in document_ids]

    def _refine(
        self, new: NewPassages, document_ids: Sequence[str], vectors: np.ndarray
    ) -> np.ndarray:
        """Replace the encodings of new documents by the vectors that `new.refine` computes.

        This function solves vectors by IncDSI, so that a document is found by its queries.

        Args:
            new: New passages, with the function `refine` and the known queries of documents.
            document_ids: Document of each row, (n,).
            vectors: Encoding of each row, (n, H).

        Returns:
            The vectors to index, (n, H) float32.

        Raises:
            FreshetError: If the function returns vectors of another shape, or not finite ones.
        """
        query_vectors = self.encode_known_queries(new, document_ids)
        refined = new.refine(document_ids, vectors, query_vectors)
        if refined.shape != vectors.shape or not np.isfinite(refined).all():
            raise FreshetError(
                f"refine gave vectors of shape {refined.shape} or not finite; "
                f"it must give {vectors.shape}"
            )
        return refined.astype(np.float32)

    def _build_exact_index(
        self, vectors: np.ndarray, document_ids: Sequence[str], token_signs: TokenSigns | None
    ) -> DenseIndex:
        """Index vectors of this retriever's encoder for exact search.

        New documents are too few to train an approximate index on.
        """
        return DenseIndex.build(
            vectors,
            document_ids,
            self.fingerprint,
            EXACT_SETTINGS,
            self.index.vectors_per_passage,
            token_signs,
        )
