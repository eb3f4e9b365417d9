"""Retrievers over indexes in folders, and segments of documents that are added later, searched as
one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.protocol import Queries, Ranking, Retriever, Search, TokenMatch
from model_code.retrieval.top_k import SPARE, rank_best_first, search_filtered

Refine = Callable[[Sequence[str], np.ndarray, Sequence[np.ndarray]], np.ndarray]
"""(document of each row, the encoder's vectors (n, H), each row's query vectors (m, H)) -> the
vectors to index (n, H).

m is 0 for a document that came without queries.
"""


@dataclass(frozen=True)
class NewPassages:
    """Passages to index: their texts, the document of each, and the queries that documents came
    with.

    The passages of a document follow each other. refine: changes the vectors of kinds that have a
    dense one.
    """

    texts: Sequence[str]
    document_ids: Sequence[str]
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refine: Refine | None = None


class IndexedRetriever(Retriever[Queries]):
    """A retriever over the folder of its indexes, beside which a live collection puts segments of
    later documents.

    learns_documents: training has made the vectors of documents, so that these are of the texts
    that it was shown.
    """

    learns_documents = False

    @abstractmethod
    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages, encoded by this retriever's encoder, in `folder`."""

    @abstractmethod
    def reopen(self, folder: Path) -> Self:
        """The same encoder over the indexes of another such folder."""

    @classmethod
    @abstractmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of several retrievers as they are in `folder`: nothing is
        encoded.
        """

    @abstractmethod
    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """A vector (n, D) for each of the n passages, which are of `document_ids`, for the
        hierarchy.
        """

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """The search of several segments of this kind together, no document in two of them."""
        return SegmentedRetriever(segments)


@dataclass(frozen=True, eq=False)
class RetrieverSegment:
    """A retriever over documents that were indexed together, and which of them are `removed` since.

    rows: the document of each passage.
    """

    retriever: IndexedRetriever
    rows: IdMap
    removed: frozenset[str] = frozenset()

    def __contains__(self, document_id: object) -> bool:
        """Whether the document is in the segment and not removed."""
        return document_id in self.rows and document_id not in self.removed

    @property
    def documents(self) -> int:
        """Number of documents that can be found."""
        return self.rows.documents - len(self.removed)

    def of(self, retriever: IndexedRetriever) -> RetrieverSegment:
        """The same documents in another retriever's index."""
        return replace(self, retriever=retriever)


class SegmentedRetriever(Retriever[Any]):
    """A retriever over segments, no document in two of them: queries are encoded once, for all.

    Every segment ranks exactly as it would alone, and rankings are merged by descending score and
    ascending id.
    """

    def __init__(self, segments: Sequence[RetrieverSegment]) -> None:
        self.segments = tuple(segments)
        self.first = self.segments[0].retriever
        self.fingerprint: str = self.first.fingerprint
        self.candidate_depth, self.can_explain = self.first.candidate_depth, self.first.can_explain

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """The kind's own form of query texts."""
        return self.first.encode_queries(texts)

    def search_encoded(
        self, queries: Any, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents of all segments for each query, best first; of `allowed` documents
        only, unless None.

        FreshetError if an allowed document is unknown.
        """
        if allowed is None:
            filled = [segment for segment in self.segments if segment.documents]
            rankings = [
                _surviving(segment, segment.retriever.search_encoded, queries, k)
                for segment in filled
            ]
        else:
            shares = _shares(self.segments, allowed).items()
            rankings = [
                segment.retriever.search_encoded(queries, k, documents)
                for segment, documents in shares
            ]
        return _merged(rankings, len(queries), k)

    def score_encoded(self, queries: Any, candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Every candidate's score by the segment that has it; FreshetError if none has one."""
        return [
            self._scores(queries[i : i + 1], documents) for i, documents in enumerate(candidates)
        ]

    def _scores(self, query: Any, documents: Sequence[str]) -> np.ndarray:
        table: dict[str, float] = {}
        for segment, share in _shares(self.segments, documents).items():
            table.update(
                zip(share, segment.retriever.score_encoded(query, [share])[0].tolist(), strict=True)
            )
        return np.array([table[document] for document in documents], np.float64)

    def best_passage_encoded(self, query: Any, document_id: str) -> int:
        """Which of the document's passages answers the query best."""
        return owner(self.segments, document_id).retriever.best_passage_encoded(query, document_id)

    def variants(self) -> Mapping[str, Search]:
        """Those of the kind, over all segments."""

        def search(
            name: str, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
        ) -> list[Ranking]:
            if allowed is not None:
                raise FreshetError(f"variant {name} searches all documents of several segments")
            filled = [segment for segment in self.segments if segment.documents]
            rankings = [
                _surviving(segment, segment.retriever.variants()[name], texts, k)
                for segment in filled
            ]
            return _merged(rankings, len(texts), k)

        return {name: partial(search, name) for name in self.first.variants()}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Which tokens matched, the heaviest first; FreshetError if the kind does not score by
        token.
        """
        return owner(self.segments, document_id).retriever.explain(text, document_id)


def owner(segments: Sequence[RetrieverSegment], document_id: str) -> RetrieverSegment:
    """The segment that has a document; FreshetError if none has."""
    for segment in reversed(segments):
        if document_id in segment:
            return segment
    raise FreshetError(
        f"the collection holds no document {document_id!r}: it was never added, or is deleted"
    )


def _shares(
    segments: Sequence[RetrieverSegment], document_ids: Collection[str]
) -> dict[RetrieverSegment, list[str]]:
    """The documents by the segment that has them; FreshetError if one is in none."""
    shares: dict[RetrieverSegment, list[str]] = {}
    missing = set(document_ids)
    for segment in reversed(segments):
        if documents := segment.rows.among(missing) - segment.removed:
            shares[segment] = list(documents)
            missing -= documents
    if missing:
        owner(segments, min(missing))  # which says so
    return shares


def _surviving(
    segment: RetrieverSegment, search: Callable[[Any, int], list[Ranking]], queries: Any, k: int
) -> list[Ranking]:
    """The k best documents of a segment for each query that are not removed; fewer only where no
    others match.
    """
    removed = segment.removed
    if not removed:
        return search(queries, k)
    return search_filtered(
        search, queries, k, lambda document: document not in removed, k + SPARE, k + len(removed)
    )


def _merged(rankings: Sequence[Sequence[Ranking]], queries: int, k: int) -> list[Ranking]:
    """The k best of all segments' rankings, for each of the queries."""
    if len(rankings) == 1:
        return [list(ranking[:k]) for ranking in rankings[0]]
    return [
        rank_best_first(chain.from_iterable(part[i] for part in rankings), k)
        for i in range(queries)
    ]
