"""The lexical retriever (SVDR): the searches of `index.py` over a folder, and segments beside it.

A segment of a live collection holds the tokens of new passages, and their embeddings or texts if
the base segment does.
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

# Components that a vocabulary is projected to for the hierarchy. A cosine errs by about 1 / 16.
PROJECTED_COMPONENTS = 256


class LexicalRetriever(LexicalSearch, IndexedRetriever[list[Sparse]]):
    """A `LexicalSearch` over the folder of its indexes."""

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`, with the same parts as this retriever's indexes."""
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
        self.over(tokens, passages, known).save(folder)

    def reopen(self, folder: Path) -> Self:
        """Open the indexes in another folder with the same encoder."""
        return self.open(folder, self.encoder, self.fingerprint)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of several retrievers in `folder`. Nothing is encoded."""
        first, _ = parts[0]
        bags: list[np.ndarray] = []
        known_bags: list[np.ndarray] = []
        ids: list[str] = []
        embeddings: list[Sparse] = []
        texts: list[str] = []
        for retriever, documents in parts:
            rows = retriever.tokens.ids.rows_of(documents)
            bags.extend(retriever.tokens.bags(rows))
            if retriever.known is not None:
                known_bags.extend(retriever.known.index.bags(rows))
            ids.extend(retriever.tokens.ids.document_ids[row] for row in rows.tolist())
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
        first.over(tokens, passages, known).save(folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one retriever over several segments, with the known queries that count now."""
        return super().join_segments([_with_changed_queries(segment) for segment in segments])

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return vectors of the passages by which they are placed in the hierarchy.

        They are the learned weights, or the tokens if no weights are indexed, projected to few
        components by random signs. Inner products are preserved on average, with a standard
        deviation of at most |a| |b| sqrt(2 / D) (Achlioptas, 2003, Database-friendly random
        projections). This is exact enough to place passages among topics, with a hundredth of the
        memory.

        Args:
            document_ids: The document of each passage.

        Returns:
            Vectors, (n, D) float32.
        """
        projected = np.zeros((len(document_ids), PROJECTED_COMPONENTS), np.float32)
        signs = _random_signs(self.encoder.vocabulary_size)
        index = self.passages
        if isinstance(index, EmbeddingIndex):
            for entry in np.flatnonzero(np.diff(index.starts)).tolist():
                postings = slice(index.starts[entry], index.starts[entry + 1])
                weights = index.weights[postings, None].astype(np.float32)
                projected[index.passages[postings]] += weights * signs[entry]
            return projected

        for row, bag in enumerate(self.tokens.bags(np.arange(len(document_ids)))):
            projected[row] = signs[bag].sum(axis=0, dtype=np.float32)
        return projected


def _with_changed_queries(segment: RetrieverSegment) -> RetrieverSegment:
    """Return a segment whose retriever has the known queries that changed since it was written."""
    retriever: Any = segment.retriever
    if not segment.known or retriever.known is None:
        return segment
    find_tokens = token_bags(retriever.encoder)
    known = retriever.known.change_queries(segment.known, retriever.tokens, find_tokens)
    return segment.of(retriever.over(retriever.tokens, retriever.passages, known))


@lru_cache(maxsize=1)
def _random_signs(size: int) -> np.ndarray:
    """Return (V, D) int8 of -1 and 1, always the same ones."""
    bits = np.random.default_rng(0).integers(0, 2, (size, PROJECTED_COMPONENTS), dtype=np.int8)
    return bits * np.int8(2) - np.int8(1)
