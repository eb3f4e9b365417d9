"""What every retriever can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Ranking = list[tuple[str, float]]
"""Document ids and scores, best first."""

Search = Callable[[Sequence[str], int], list[Ranking]]
"""(query texts, k) -> the k best documents of each, best first."""


@dataclass(frozen=True)
class TokenMatch:
    """What one token adds to a document's score; `expanded`: the token is not the query's, its encoder added it."""

    token: str
    weight: float
    expanded: bool = False


@dataclass(frozen=True)
class Hit:
    """A document found, and of it the passage that answers best; from `generation` of the collection.

    rank: from 1. text: the passage, `start` to `end` of the document's text (characters), below the heading `section`.
    snippet: its sentences around the query's words, which stand at `marks` in it (begin and end). date: ISO. path: the
    hierarchy's nodes above the passage, root first; topics: their names. tokens: what the score is made of, tokens or
    the parts of a fused retriever; None where nobody asked.
    """

    rank: int
    score: float
    document_id: str
    title: str
    text: str
    start: int
    end: int
    section: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    fields: Mapping[str, Any]
    date: str | None
    path: tuple[int, ...]
    generation: int
    tokens: tuple[TokenMatch, ...] | None = None
    topics: tuple[str, ...] = ()


class Retriever(Protocol):
    """A trained encoder and the index of its documents, opened: immutable, and safe to share between threads."""

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the index, and that queries are encoded with."""
        ...

    def search(self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query text, best first; of `allowed` documents only, unless None."""
        ...

    def rerank(self, texts: Sequence[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """For each query text its `candidates` (document ids), all of them, scored and sorted as `search` would."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """The query side of texts, in the kind's own form: for one encoding and several searches by it."""
        ...

    def find(self, queries: Any, k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """`search` by what `encode_queries` returned."""
        ...

    def rerank_encoded(self, queries: Any, candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """`rerank` by what `encode_queries` returned."""
        ...

    def best_passage(self, text: str, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best; 0 where documents have one vector."""
        ...

    def variants(self) -> Mapping[str, Search]:
        """Other ways to search the same build, by name, evaluated beside the main one; mostly none."""
        ...

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Which tokens matched, the heaviest first; FreshetError if this kind of retriever does not score by token."""
        ...
