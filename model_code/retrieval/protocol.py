"""The interface that every retriever implements, whatever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from freshet.results import TokenMatch
from model_code.errors import FreshetError
from model_code.text.words import AUTO

if TYPE_CHECKING:
    import numpy as np

# Document ids and scores, best first.
Ranking = list[tuple[str, float]]

# Suffix of a fusion component's name that denotes the component's late-interaction score.
LATE_SUFFIX = ".late"


@dataclass(frozen=True)
class TypedQuery:
    """A query as a person types it.

    Attributes:
        text: The text for encoders. Its unfinished last word may already be completed.
        words: The words as typed, for retrievers that match words.
        is_unfinished: Whether the last word may be the beginning of a longer one.
        corrects_typos: Whether one typo is tolerated in longer words that the index does not know.
    """

    text: str
    words: str
    is_unfinished: bool = False
    corrects_typos: bool = True


# (query texts, k) -> the k best documents for each text, best first.
Search = Callable[[Sequence[str], int], list[Ranking]]


# A kind's representation of n encoded queries. A slice of it represents fewer queries.
Queries = TypeVar("Queries")


class Retriever(ABC, Generic[Queries]):
    """An opened retriever: it encodes queries and searches its index.

    Retrievers are immutable and can be shared between threads. Subclasses implement the search for
    encoded queries. This class implements the search for query texts with it. One encoding of a
    query can search several indexes of one encoder, such as the segments of a live collection.

    Attributes:
        fingerprint: Fingerprint of the encoder that made the index and encodes the queries.
        candidate_depth: Number of candidates that `search_encoded` must return for re-ranking. None
            if the ranking of `search_encoded` is final. A search of several indexes must merge
            their candidates before it re-ranks them.
        can_explain: Whether `explain` is supported.
        language: Language of the words that are marked in hits, see `TermAnalyzer`.
    """

    fingerprint: str
    candidate_depth: int | None = None
    can_explain = False
    language: str | None = AUTO

    @property
    def dense(self) -> Any | None:
        """The dense retriever among this retriever and its components; None if there is none."""
        return None

    @property
    def keyword_index(self) -> Any | None:
        """The BM25 index among this retriever and its components; None if there is none.

        Words of queries, such as excluded ones, are looked up in it.
        """
        return None

    @abstractmethod
    def encode_queries(self, texts: Sequence[str]) -> Queries:
        """Return queries in the form that this kind searches, such as vectors or term counts."""

    def encode_typed(self, queries: Sequence[TypedQuery]) -> Queries:
        """Encode queries as people type them.

        BM25 tolerates typos and completes unfinished words. Other retrievers encode the text.
        """
        return self.encode_queries([query.text for query in queries])

    def added_terms(self, queries: Queries) -> frozenset[str]:
        """Return the terms that BM25 put in place of mistyped or unfinished words of queries."""
        return frozenset()

    def encode_queries_with_signs(self, texts: Sequence[str]) -> tuple[Queries, Any]:
        """Encode query texts and return their `TokenSigns` as well.

        Raises:
            TypeError: If the kind has no token vectors. Most kinds have none.
        """
        raise TypeError(f"{type(self).__name__} has no vectors of tokens")

    @abstractmethod
    def search_encoded(
        self, queries: Queries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents for each encoded query, without re-ranking them.

        Args:
            queries: Encoded queries.
            k: Number of documents per query.
            allowed: Ids of the documents to search. None searches all.
        """

    @abstractmethod
    def score_encoded(
        self, queries: Queries, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Score the candidates of each encoded query.

        Args:
            queries: Encoded queries.
            candidates: Document ids per query, without repetitions.

        Returns:
            Scores (n,) of the n candidates of each query, in the order of the candidates.

        Raises:
            FreshetError: If a candidate is not in the index.
        """

    def fits(
        self, queries: Queries, candidates: Sequence[Sequence[str]]
    ) -> list[dict[str, np.ndarray]]:
        """Return a measure of relevance that is comparable between queries, for each candidate.

        The relevance floor compares fits with a threshold. Most kinds return their scores.

        Args:
            queries: Encoded queries.
            candidates: Document ids per query, without repetitions.

        Returns:
            For each query, the fits (n,) of its n candidates by component. Kinds without components
            use the empty name.
        """
        return [{"": scores} for scores in self.score_encoded(queries, candidates)]

    @abstractmethod
    def best_passage_encoded(self, query: Queries, document_id: str) -> int:
        """Return the number of a document's passage that answers a query best, counted from 0.

        It is 0 for kinds with one vector per document.

        Args:
            query: One encoded query.
            document_id: Id of the document.
        """

    def vectors_of(self, document_ids: Sequence[str]) -> Any:
        """Return the `CandidateVectors` of different documents.

        Raises:
            FreshetError: If a document is not in the index.
            TypeError: If the kind has no document vectors. Most kinds have none.
        """
        raise TypeError(f"{type(self).__name__} has no vectors of documents")

    def search_and_rerank(
        self, queries: Queries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents for each encoded query, after re-ranking.

        Kinds with a `candidate_depth` score that many candidates again with `score_encoded`. For
        other kinds this is `search_encoded`. Documents with equal scores are ordered by ascending
        id.
        """
        if self.candidate_depth is None:
            return self.search_encoded(queries, k, allowed)

        proposals = self.search_encoded(queries, max(k, self.candidate_depth), allowed)
        # Candidates are sorted by id, because `top_k_ranking` orders equal scores by position.
        candidates = [sorted(document for document, _ in ranking) for ranking in proposals]
        scores = self.score_encoded(queries, candidates)
        return [
            top_k_ranking(document_ids, values, k)
            for document_ids, values in zip(candidates, scores, strict=True)
        ]

    def search(
        self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents for each query text, best first.

        Args:
            texts: Query texts.
            k: Number of documents per query.
            allowed: Ids of the documents to search. None searches all.
        """
        return self.search_and_rerank(self.encode_queries(texts), k, allowed)

    def without_known_words(self) -> Retriever[Queries]:
        """Return the same search in which known queries do not count as words."""
        return self

    def variants(self) -> Mapping[str, Search]:
        """Return other ways to search the same index, by name, which the evaluation compares."""
        return {}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return the contribution of each token or component to a document's score, largest first.

        Raises:
            FreshetError: If the kind does not score by token. Most kinds do not.
        """
        raise FreshetError(
            "this retriever does not score by token; --explain needs a lexical or a fused one"
        )

    def explain_all(
        self, text: str, query: Queries, document_ids: Sequence[str]
    ) -> list[list[TokenMatch]]:
        """Explain the scores of several documents.

        Args:
            text: The query text.
            query: The encoded query text.
            document_ids: Ids of the documents.
        """
        return [self.explain(text, document_id) for document_id in document_ids]


def top_k_ranking(document_ids: Sequence[str], scores: np.ndarray, k: int) -> Ranking:
    """Return the k best documents with their scores.

    Args:
        document_ids: Different ids in ascending order, so that equal scores are ordered by id.
        scores: Score of each document, shape (n,).
        k: Number of documents to return.
    """
    order = (-scores).argsort(kind="stable")[:k]
    return [
        (document_ids[i], score)
        for i, score in zip(order.tolist(), scores[order].tolist(), strict=True)
    ]
