"""The lexical retriever (SVDR): the searches of `index.py`, for a build and for live collections.

A live collection keeps later documents in segments: further index folders. A segment holds the
tokens of its passages, and their embeddings or texts if the index of the build holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.lexical.index import (
    EmbeddingIndex,
    LexicalSearch,
    Passages,
    PassagesOnTheFly,
    index_tokens,
    token_bags,
)
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.known_tokens import KnownTokens
from model_code.lexical.token_index.postings import Sparse
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Retriever

# Dimension D to which vectors over the vocabulary are projected for the hierarchy. The error of a
# cosine is about 1 / 16.
PROJECTED_COMPONENTS = 256


class LexicalRetriever(LexicalSearch, IndexedRetriever[list[Sparse]]):
    """A `LexicalSearch` that can also index new passages, and merge and join segments."""

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`, with the same parts as this retriever's own folder."""
        words = None if self.known is None else self.known.words
        tokens, known = index_tokens(self.encoder, new.texts, new.document_ids, new.known, words)
        passages: Passages | None = None
        if isinstance(self.passages, EmbeddingIndex):
            embeddings = self.encoder.encode(new.texts)
            passages = EmbeddingIndex.build(
                embeddings, new.document_ids, self.encoder.vocabulary_size
            )
        elif self.passages is not None:
            passages = PassagesOnTheFly(new.texts, tokens.ids, self.encoder)
        self.with_indexes(tokens, passages, known).save(folder)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same encoder over the indexes in another folder."""
        return self.open(folder, self.encoder, self.fingerprint)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Write one index of selected documents of several retrievers, without encoding.

        Args:
            sources: Each retriever with the ids of its documents that are kept. All retrievers have
                the same encoder and the same kinds of indexes.
            folder: Folder to write to.
        """
        first, _ = sources[0]
        # Collect each part for all kept passages. The list of a part that the indexes lack stays
        # empty.
        bags: list[np.ndarray] = []
        known_bags: list[np.ndarray] = []
        ids: list[str] = []
        embeddings: list[Sparse] = []
        texts: list[str] = []
        for retriever, documents in sources:
            rows = retriever.tokens.ids.rows_of(documents)
            bags.extend(retriever.tokens.bags(rows))
            ids.extend(retriever.tokens.ids.document_ids[row] for row in rows.tolist())
            if retriever.known is not None:
                known_bags.extend(retriever.known.index.bags(rows))
            if isinstance(retriever.passages, EmbeddingIndex):
                embeddings.extend(retriever.passages.embeddings(rows))
            elif retriever.passages is not None:
                texts.extend(retriever.passages.texts[row] for row in rows.tolist())

        tokens = TokenIndex.build(bags, ids)
        passages: Passages | None = None
        if isinstance(first.passages, EmbeddingIndex):
            passages = EmbeddingIndex.build(embeddings, ids, first.encoder.vocabulary_size)
        elif first.passages is not None:
            passages = PassagesOnTheFly(texts, tokens.ids, first.encoder)
        known = None
        if first.known is not None:
            known = KnownTokens(TokenIndex.build(known_bags, ids), first.known.words)
        first.with_indexes(tokens, passages, known).save(folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one retriever over several segments, with their changed known queries applied."""
        return super().join_segments([_with_changed_queries(segment) for segment in segments])

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return one dense vector per passage, with which the hierarchy clusters passages.

        The vector is a random projection of the passage's learned weights, or of its tokens if no
        weights are indexed. It preserves inner products on average, with a standard deviation of at
        most |a| |b| sqrt(2 / D) (Achlioptas, 2003, Database-friendly random projections). This is
        exact enough for clustering, with a hundredth of the memory.

        Args:
            document_ids: The document of each passage.

        Returns:
            Vectors, (n, D) float32.
        """
        projected = np.zeros((len(document_ids), PROJECTED_COMPONENTS), np.float32)
        signs = _random_signs(self.encoder.vocabulary_size)
        index = self.passages
        if not isinstance(index, EmbeddingIndex):
            for row, bag in enumerate(self.tokens.bags(np.arange(len(document_ids)))):
                projected[row] = signs[bag].sum(axis=0, dtype=np.float32)
            return projected

        # Each vocabulary entry adds its row of signs to the passages that have a weight there.
        used_entries = np.flatnonzero(np.diff(index.starts))
        for entry in used_entries.tolist():
            postings = slice(index.starts[entry], index.starts[entry + 1])
            weights = index.weights[postings, None].astype(np.float32)
            projected[index.passages[postings]] += weights * signs[entry]
        return projected


def _with_changed_queries(segment: RetrieverSegment) -> RetrieverSegment:
    """Return a segment whose retriever uses the known queries that changed after indexing.

    The segment is returned unchanged if no query changed, or if known queries do not count.
    """
    retriever: Any = segment.retriever
    if not segment.known or retriever.known is None:
        return segment
    find_tokens = token_bags(retriever.encoder)
    known = retriever.known.change_queries(segment.known, retriever.tokens, find_tokens)
    return segment.of(retriever.with_indexes(retriever.tokens, retriever.passages, known))


@lru_cache(maxsize=1)
def _random_signs(size: int) -> np.ndarray:
    """Return the matrix of a random projection: -1 and 1 at random, (V, D) int8.

    Equal calls give equal matrices, so that all passages are projected alike.
    """
    bits = np.random.default_rng(0).integers(0, 2, (size, PROJECTED_COMPONENTS), dtype=np.int8)
    return bits * np.int8(2) - np.int8(1)
