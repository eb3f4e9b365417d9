"""Searching by queries that are encoded already, so that several indexes of one encoder cost one encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from model_code.retriever import Ranking

Queries = TypeVar("Queries")
"""A kind's own form of n encoded queries; a slice of it is the form of fewer."""


class TextSearches(ABC, Generic[Queries]):
    """The searches of a `Retriever` by text, in terms of those by encoded queries, which kinds implement.

    proposed: where a search re-ranks what a cheaper one proposes, how many documents that are; None: it does not. Over
    several indexes the proposals of all must be merged before they are ranked anew.
    """

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
        found = self.search_encoded(queries, max(k, self.proposed), allowed)
        candidates = [[document for document, _ in ranking] for ranking in found]
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
