"""Searches as objects, which a thread of the service or a search process runs.

A task is sent to another process, so it holds only its parameters. Its result is sent back, so a
page of hits is JSON already, in the form in which the service answers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import TypeAdapter

from freshet.results import SearchResult
from model_code.collection.generations.query_options import QueryOptions
from orchestration.service.errors import NotFound

if TYPE_CHECKING:
    from model_code.collection.generations.searcher import Searcher

T = TypeVar("T")


@dataclass(frozen=True)
class AnswerPage:
    """A page of hits as JSON.

    Attributes:
        content: A `SearchResult` as JSON.
        retriever: Name of the retriever.
        generation: Number of the generation that was searched.
        hit_count: Number of hits.
    """

    content: bytes
    retriever: str
    generation: int
    hit_count: int


class SearchTask(ABC, Generic[T]):
    """A search. All of its answers come from one generation, a snapshot of the index."""

    @abstractmethod
    def run(self, searcher: Searcher) -> T:
        """Return the answer.

        Args:
            searcher: The open generation to search.
        """


@dataclass(frozen=True)
class TextSearch(SearchTask[list[AnswerPage]]):
    """A search for several texts, which is faster than one by one."""

    texts: Sequence[str]
    options: QueryOptions

    def run(self, searcher: Searcher) -> list[AnswerPage]:
        """Return a page for each text."""
        results = searcher.search_pages(self.texts, self.options)
        return [_make_page(result) for result in results]


@dataclass(frozen=True)
class LikeSearch(SearchTask[AnswerPage]):
    """A search for documents that are similar to a given one."""

    document_id: str
    options: QueryOptions

    def run(self, searcher: Searcher) -> AnswerPage:
        """Return the page.

        Raises:
            NotFound: If there is no document with this id.
        """
        if not searcher.unexpired_documents([self.document_id]):
            raise NotFound(f"there is no document {self.document_id!r}")
        return _make_page(searcher.search_like(self.document_id, self.options))


@dataclass(frozen=True)
class VectorSearch(SearchTask[AnswerPage]):
    """A search for the documents whose passages are nearest to a vector."""

    vector: Sequence[float]
    options: QueryOptions

    def run(self, searcher: Searcher) -> AnswerPage:
        """Return the page."""
        return _make_page(searcher.search_vector(self.vector, self.options))


@dataclass(frozen=True)
class RaisedCheck(SearchTask[bool]):
    """The question whether a hit was shown only because of known queries.

    A known query is a query that a document is known to answer.
    """

    query: str
    document_id: str

    def run(self, searcher: Searcher) -> bool:
        """Return the answer; see `is_raised_by_known_queries`."""
        # The import is inside because it loads the index, which this module need not do.
        from model_code.collection.generations.raised_hits import is_raised_by_known_queries

        return is_raised_by_known_queries(searcher, self.query, self.document_id)


@cache
def _json_adapter() -> TypeAdapter[SearchResult]:
    return TypeAdapter(SearchResult)


def _make_page(result: SearchResult) -> AnswerPage:
    content = _json_adapter().dump_json(result)
    return AnswerPage(content, result.retriever, result.generation, len(result.hits))
