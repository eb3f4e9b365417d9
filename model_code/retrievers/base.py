"""What a kind of retriever is made of: searches by encoded queries, and segments of documents that are added later.

Queries that are encoded once can search several indexes of one encoder: the parts of a live collection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Self, TypeVar

import numpy as np

from model_code.errors import FreshetError
from model_code.retriever import Ranking, Search, TokenMatch

Queries = TypeVar("Queries")
"""A kind's own form of n encoded queries; a slice of it is the form of fewer."""

Refine = Callable[[Sequence[str], np.ndarray, Sequence[np.ndarray]], np.ndarray]
"""(document of each row, the encoder's vectors (n, H), each row's query vectors (m, H)) -> the vectors to index (n, H).

m is 0 for a document that came without queries."""


@dataclass(frozen=True)
class NewPassages:
    """Passages to index: their texts, the document of each, and the queries that documents came with.

    The passages of a document follow each other. refine: changes the vectors of kinds that have a dense one.
    """

    texts: Sequence[str]
    document_ids: Sequence[str]
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refine: Refine | None = None


class EncodedRetriever(ABC, Generic[Queries]):
    """The searches of a `Retriever` by text, in terms of those by encoded queries, which kinds implement.

    proposed: where a search re-ranks what a cheaper one proposes, how many documents that are; None: it does not. Over
    several indexes the proposals of all must be merged before they are ranked anew.
    """

    fingerprint: str
    proposed: int | None = None

    @abstractmethod
    def encode_queries(self, texts: Sequence[str]) -> Queries:
        """The query side of texts."""

    @abstractmethod
    def search_encoded(self, queries: Queries, k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """`find`, or where `proposed` is set the cheaper search alone."""

    @abstractmethod
    def rerank_encoded(self, queries: Queries, candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """`rerank` for encoded queries."""

    @abstractmethod
    def best_passage_encoded(self, query: Queries, document_id: str) -> int:
        """`best_passage` for one encoded query."""

    def find(self, queries: Queries, k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """`search` for encoded queries."""
        if self.proposed is None:
            return self.search_encoded(queries, k, allowed)
        proposals = self.search_encoded(queries, max(k, self.proposed), allowed)
        candidates = [[document for document, _ in ranking] for ranking in proposals]
        return [ranking[:k] for ranking in self.rerank_encoded(queries, candidates)]

    def search(self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query text, best first; of `allowed` documents only, unless None."""
        return self.find(self.encode_queries(texts), k, allowed)

    def rerank(self, texts: Sequence[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each query's `candidates`, scored and sorted as `search` would."""
        return self.rerank_encoded(self.encode_queries(texts), candidates)

    def best_passage(self, text: str, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        return self.best_passage_encoded(self.encode_queries([text]), document_id)

    def variants(self) -> Mapping[str, Search]:
        """Other ways to search, by name: none."""
        return {}


class IndexedRetriever(EncodedRetriever[Queries]):
    """A retriever over the folder of its indexes, beside which a live collection puts segments of later documents."""

    @abstractmethod
    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages, encoded by this retriever's encoder, in `folder`."""

    @abstractmethod
    def reopen(self, folder: Path) -> Self:
        """The same encoder over the indexes of another such folder."""

    @classmethod
    @abstractmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of several retrievers as they are in `folder`: nothing is encoded."""

    @abstractmethod
    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """A vector (n, D) for each of the n passages, which are of `document_ids`, for the hierarchy."""

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """The tokens that matched: FreshetError, as most kinds do not score by token."""
        raise FreshetError("this retriever does not score by token; --explain needs a lexical one (kind: lexical)")
