"""What every retriever can do, whatever it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from model_code.errors import FreshetError
from model_code.text.words import AUTO

if TYPE_CHECKING:
    import numpy as np

Ranking = list[tuple[str, float]]
"""Document ids and scores, best first."""

LATE_SUFFIX = ".late"  # behind the name of a fusion's part: its scores by late interaction

Search = Callable[[Sequence[str], int], list[Ranking]]
"""(query texts, k) -> the k best documents of each, best first."""


@dataclass(frozen=True)
class TokenMatch:
    """What one token adds to a document's score; `expanded`: the token is not the query's, its
    encoder added it.
    """

    token: str
    weight: float
    expanded: bool = False


Queries = TypeVar("Queries")
"""A kind's own form of n encoded queries; a slice of it is the form of fewer."""


class Retriever(ABC, Generic[Queries]):
    """A trained encoder and the index of its documents, opened: immutable, and safe to share
    between threads.

    Searches by text are given here, in terms of those by encoded queries: encoded once, these can
    search several indexes of one encoder, the segments of a live collection.

    fingerprint: of the encoder that made the index, and that queries are encoded with. proposed:
    where a search re-ranks what a cheaper one proposes, how many documents that are; None: it does
    not. Over several indexes the proposals of all must be merged before they are ranked anew.
    can_explain: whether `explain` can say what a score is made of. language: of the words that are
    marked in what it finds, see `text.terms.TermAnalyzer`.
    """

    fingerprint: str
    candidate_depth: int | None = None
    can_explain = False
    language: str | None = AUTO

    @property
    def dense(self) -> Any | None:
        """What of it makes one vector of a query, a `DenseRetriever`: itself, a part of it, or
        nothing.
        """
        return None

    @abstractmethod
    def encode_queries(self, texts: Sequence[str]) -> Queries:
        """The query side of texts."""

    def encode_with_tokens(self, texts: Sequence[str]) -> tuple[Queries, Any]:
        """The query side of texts, and their `TokenSigns`; TypeError, as most kinds have none."""
        raise TypeError(f"{type(self).__name__} has no vectors of tokens")

    @abstractmethod
    def search_encoded(
        self, queries: Queries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """`search_and_rerank`, or where `candidate_depth` is set the cheaper search alone."""

    @abstractmethod
    def score_encoded(
        self, queries: Queries, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """For each query the scores (n,) of its n candidates, all different, in their order.

        FreshetError if one is unknown.
        """

    @abstractmethod
    def best_passage_encoded(self, query: Queries, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers one query best; 0 where documents
        have one vector.
        """

    def vectors_of(self, document_ids: Sequence[str]) -> Any:
        """What a dense index holds of different documents, see `CandidateVectors`.

        FreshetError if one is unknown; TypeError, as most kinds have none.
        """
        raise TypeError(f"{type(self).__name__} has no vectors of documents")

    def search_and_rerank(
        self, queries: Queries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """`search` for encoded queries; equal scores go by ascending id."""
        if self.candidate_depth is None:
            return self.search_encoded(queries, k, allowed)
        proposals = self.search_encoded(queries, max(k, self.candidate_depth), allowed)
        candidates = [sorted(dict(ranking)) for ranking in proposals]
        scores = self.score_encoded(queries, candidates)
        return [top_k_ranking(*pair, k) for pair in zip(candidates, scores, strict=True)]

    def search(
        self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query text, best first; of `allowed` documents only, unless
        None.
        """
        return self.search_and_rerank(self.encode_queries(texts), k, allowed)

    def variants(self) -> Mapping[str, Search]:
        """Other ways to search the same build, by name, evaluated beside the main one: mostly none."""
        return {}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """What the score is made of, the heaviest first; FreshetError: most kinds do not score by
        token.
        """
        raise FreshetError(
            "this retriever does not score by token; --explain needs a lexical or a fused one"
        )

    def explain_all(
        self, text: str, query: Queries, document_ids: Sequence[str]
    ) -> list[list[TokenMatch]]:
        """The same of several documents; query: the text, encoded."""
        return [self.explain(text, document_id) for document_id in document_ids]


def top_k_ranking(document_ids: Sequence[str], scores: np.ndarray, k: int) -> Ranking:
    """The k best of documents with `scores` (n,), which ascend by id, so that equal scores do."""
    order = (-scores).argsort(kind="stable")[:k]
    return [
        (document_ids[i], score)
        for i, score in zip(order.tolist(), scores[order].tolist(), strict=True)
    ]
