"""Vectors of a judged collection under one encoder, and the tuning and test splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.encoding import BASE
from experiments.incdsi_frontier.pages import NEW, TUNING, Pages
from experiments.incdsi_frontier.tuning import Split
from model_code.files import atomic_write, canonical_json, hash_text
from model_code.incdsi.adder import NewDocument


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded collection.

    Attributes:
        pages: Texts and judgements of the collection.
        documents: Unit vectors of the documents (n, H).
        queries: Unit vectors of the queries (m, H).
    """

    pages: Pages
    documents: np.ndarray
    queries: np.ndarray

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each document by its id."""
        return {document_id: row for row, document_id in enumerate(self.pages.ids)}

    def train_queries(self, row: int) -> np.ndarray:
        """Return the vectors (m, H) of the train queries of the document in a row.

        A document without train queries has its own vector as its only query.
        """
        query_rows = self.pages.query_rows.get("train", {}).get(self.pages.ids[row], ())
        if query_rows:
            return self.queries[list(query_rows)]
        return self.documents[row : row + 1]

    def answered_queries(self, rows: Sequence[int], split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries of one split for some documents.

        Args:
            rows: Rows of the documents.
            split: Name of the split.

        Returns:
            Vectors of the queries (m, H). The position of each query's document in `rows` (m,).
        """
        positions = {self.pages.ids[row]: position for position, row in enumerate(rows)}
        query_rows, targets = self.pages.queries_for(list(positions), split)
        target_positions = np.array([positions[target] for target in targets], np.int64)
        return self.queries[query_rows], target_positions

    def split(self, new: Sequence[int], old_split: str, *new_splits: str) -> Split:
        """Return new documents, with the queries that evaluate old and new documents.

        Args:
            new: Rows of the new documents.
            old_split: Split of the queries for old documents.
            *new_splits: Splits of the queries for new documents.
        """
        pages = self.pages
        old_queries, old_targets = pages.queries_for(pages.ids[: pages.old], old_split)
        new_queries, new_targets = pages.queries_for([pages.ids[row] for row in new], *new_splits)
        documents = [
            NewDocument(pages.ids[row], self.train_queries(row), self.documents[row]) for row in new
        ]
        return Split(
            documents,
            self.queries[old_queries],
            old_targets,
            self.queries[new_queries],
            new_targets,
        )

    def splits(self) -> tuple[Split, Split]:
        """Return the tuning split and the test split.

        The tuning split has the dev and test queries of its documents and the dev queries of old
        ones. The test split has the test queries of its documents and of old ones.
        """
        tuning = self.split(self.pages.rows(TUNING), "dev", "dev", "test")
        test = self.split(self.new, "test", "test")
        return tuning, test

    @property
    def new(self) -> list[int]:
        """Rows of the documents of the test split."""
        return self.pages.rows(NEW)


def encode(
    pages: Pages, base: str | Path = BASE, max_tokens: int = 128, cache: Path | None = None
) -> Encoded:
    """Encode the documents and queries of a collection.

    Args:
        pages: The collection.
        base: Encoder.
        max_tokens: Tokens after which a text is cut off.
        cache: Folder in which vectors are kept for later runs. None: they are not kept.
    """
    documents = _encode_texts(pages.texts, base, max_tokens, cache)
    queries = _encode_texts(pages.queries, base, max_tokens, cache)
    text_parts = _encode_texts(pages.text_parts, base, max_tokens, cache)
    return Encoded(pages, documents, np.concatenate([queries, text_parts]))


def _encode_texts(
    texts: Sequence[str], base: str | Path, max_tokens: int, cache: Path | None
) -> np.ndarray:
    """Return the vectors (n, H), from the cache if they are in it."""
    from model_code.encoding.encoder import Encoder

    cached_file = None
    if cache is not None:
        key = hash_text(canonical_json([list(texts), str(base), max_tokens]))
        cached_file = cache / f"{key[:16]}.npy"
        if cached_file.exists():
            return np.load(cached_file)

    vectors = Encoder.load(base, max_tokens, for_search=True).encode_queries(texts)
    if cached_file is not None:
        with atomic_write(cached_file) as temporary_path, temporary_path.open("wb") as stream:
            np.save(stream, vectors)
    return vectors
