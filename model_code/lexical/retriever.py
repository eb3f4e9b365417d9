"""Lexical retrieval (SVDR): texts as weights over the vocabulary, searched by tokens, by embeddings
or by both.

Segments of a live collection hold the tokens of new passages, and their embeddings or texts, as the
base has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from model_code.lexical.index import (
    EmbeddingIndex,
    LexicalSearch,
    PassagesOnTheFly,
    index_tokens,
)
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.postings import Sparse
from model_code.retrieval.indexed import IndexedRetriever, NewPassages

# components that a vocabulary is projected to for the hierarchy; a cosine errs by about 1 / 16
PROJECTED = 256


class LexicalRetriever(LexicalSearch, IndexedRetriever[list[Sparse]]):
    """A `LexicalSearch` over the folder of its indexes."""

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index the tokens of passages in `folder`, and what else the base has of its own."""
        tokens, passages = index_tokens(self.encoder, new.texts, new.document_ids), None
        if isinstance(self.passages, EmbeddingIndex):
            embeddings = self.encoder.encode(new.texts)
            passages = EmbeddingIndex.build(
                embeddings, new.document_ids, self.encoder.vocabulary_size
            )
        elif self.passages is not None:
            passages = PassagesOnTheFly(new.texts, tokens.ids, self.encoder)
        self.over(tokens, passages).save(folder)

    def reopen(self, folder: Path) -> Self:
        """The same encoder over the indexes in `folder`."""
        return self.open(folder, self.encoder, self.fingerprint)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of each retriever in `folder`, with the tokens and embeddings
        that they have.
        """
        chosen = [
            (retriever, retriever.tokens.ids.rows_of(documents)) for retriever, documents in parts
        ]
        first, rows = (
            parts[0][0],
            [(part, row) for part, numbers in chosen for row in numbers.tolist()],
        )
        ids = [part.tokens.ids.document_ids[row] for part, row in rows]
        tokens, passages = TokenIndex.build([part.tokens.bag(row) for part, row in rows], ids), None
        if isinstance(first.passages, EmbeddingIndex):
            embeddings = [
                embedding
                for part, numbers in chosen
                for embedding in part.passages.embeddings(numbers)
            ]  # type: ignore[union-attr]
            passages = EmbeddingIndex.build(embeddings, ids, first.encoder.vocabulary_size)
        elif first.passages is not None:
            texts = [part.passages.texts[row] for part, row in rows]  # type: ignore[union-attr]
            passages = PassagesOnTheFly(texts, tokens.ids, first.encoder)
        first.over(tokens, passages).save(folder)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, D): learned weights (without an index of them: tokens), projected to few components
        by random signs.

        Inner products survive on average, with a standard deviation of at most |a| |b| sqrt(2 / D)
        (Achlioptas 2003, Database-friendly random projections): good enough to place passages among
        topics, at a hundredth of the memory.
        """
        projected = np.zeros((len(document_ids), PROJECTED), np.float32)
        signs = _signs(self.encoder.vocabulary_size)
        index = self.passages
        if isinstance(index, EmbeddingIndex):
            for entry in np.flatnonzero(np.diff(index.starts)).tolist():
                postings = slice(index.starts[entry], index.starts[entry + 1])
                projected[index.passages[postings]] += (
                    index.weights[postings, None].astype(np.float32) * signs[entry]
                )
            return projected
        for row in range(len(document_ids)):
            projected[row] = signs[self.tokens.bag(row)].sum(axis=0, dtype=np.float32)
        return projected


@lru_cache(maxsize=1)
def _signs(size: int) -> np.ndarray:
    """(V, D) of +-1, the same for ever."""
    return np.random.default_rng(0).integers(0, 2, (size, PROJECTED), dtype=np.int8) * np.int8(
        2
    ) - np.int8(1)
