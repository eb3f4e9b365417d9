"""Retrievers over index folders, and the search of several segments as one collection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from model_code.errors import FreshetError
from model_code.retrieval.id_map import AllowedDocuments, IdMap
from model_code.retrieval.protocol import (
    Queries,
    Ranking,
    Retriever,
    Search,
    TokenMatch,
    TypedQuery,
)
from model_code.retrieval.top_k import EXTRA_DOCUMENTS, rank_best_first, search_filtered
from model_code.text.known_queries import KnownQuery

# A segment that tells which documents it contains, such as a `RetrieverSegment`.
Segment = TypeVar("Segment", bound=Container[str])

# A function that replaces the encoder's vectors of new documents by the vectors to index. It has
# three arguments: the document id of each of n rows; the encoder's vectors, shape (n, H); and the
# vectors of known queries. The last has an array of shape (m, H) for each row, for the m known
# queries of its document; m may be 0. The function returns vectors of shape (n, H).
Refine = Callable[[Sequence[str], np.ndarray, Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class NewPassages:
    """Passages to index in a new segment.

    Attributes:
        texts: The passages. The passages of one document are adjacent.
        document_ids: Document id of each passage.
        queries: Texts of known queries by document id, for kinds that encode known queries.
        headlines: Headline by document id, for retrievers that search headlines.
        known: Known queries by document id, for kinds that count their words.
        refine: Function that changes the vectors before they are indexed, such as IncDSI. Kinds
            without dense vectors ignore it.
    """

    texts: Sequence[str]
    document_ids: Sequence[str]
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headlines: Mapping[str, str] = field(default_factory=dict)
    refine: Refine | None = None
    known: Mapping[str, Sequence[KnownQuery]] = field(default_factory=dict)


class IndexedRetriever(Retriever[Queries]):
    """A retriever over an index folder, which can index further documents.

    A live collection keeps documents that are added later in segments: further index folders of the
    same encoder.

    Attributes:
        learns_documents: Whether training learns a vector of each document. Such a vector belongs
            to the text that training saw. Encoding the text again does not give the same vector.
    """

    learns_documents = False

    @abstractmethod
    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Encode new passages with this retriever's encoder and index them in `folder`."""

    def encode_ahead(self, new: NewPassages) -> None:
        """Encode new passages before `write_segment` indexes them, which is then faster.

        Kinds without an encoder do nothing. Another thread may index other passages meanwhile.
        """

    def keep_encodings(
        self,
        stored: IndexedRetriever[Any],
        former: NewPassages,
        new: NewPassages,
        solved: Set[str],
    ) -> None:
        """Keep stored encodings for `write_segment`, if the encoder would read the same again.

        Kinds without an encoder do nothing.

        Args:
            stored: Retriever of the segment that holds the documents now.
            former: Passages of the documents as they are stored.
            new: Passages of the same documents, as they are indexed next.
            solved: Ids of documents whose stored passage vectors IncDSI solved. These are no
                encodings.
        """

    @abstractmethod
    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same encoder over the index in another folder."""

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return the same retriever with other weights of its components.

        Raises:
            FreshetError: If this is not a fusion.
        """
        raise FreshetError(f"{type(self).__name__} has no weights: only a fusion has components")

    @classmethod
    @abstractmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Write one index of selected documents of several retrievers, without encoding anything.

        Args:
            sources: Retrievers, each with the ids of the documents to take from it.
            folder: Folder of the merged index.
        """

    @abstractmethod
    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return one vector per passage, shape (n, D), for the hierarchy.

        Args:
            document_ids: Document of each of the n passages.
        """

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one retriever over several segments. No document may be in two of them."""
        return SegmentedRetriever(segments)


@dataclass(frozen=True, eq=False)
class RetrieverSegment:
    """A retriever over documents that were indexed together, and the later changes to them.

    Attributes:
        retriever: Retriever over all documents of the segment, including removed ones.
        rows: Document id of each passage.
        removed: Ids of the documents that were removed after indexing.
        known: Known queries, by document id, of the documents whose known queries changed after
            indexing. They replace the indexed known queries of these documents.
    """

    retriever: IndexedRetriever
    rows: IdMap
    removed: frozenset[str] = frozenset()
    known: Mapping[str, Sequence[KnownQuery]] = field(default_factory=dict)

    def __contains__(self, document_id: object) -> bool:
        """Whether the document is in the segment and not removed."""
        return document_id in self.rows and document_id not in self.removed

    @property
    def documents(self) -> int:
        """Number of the segment's documents that are not removed, and so can be found."""
        return self.rows.documents - len(self.removed)

    def of(self, retriever: IndexedRetriever) -> RetrieverSegment:
        """Return this segment, with its later changes, for another retriever over its documents."""
        return replace(self, retriever=retriever)


class SegmentedRetriever(Retriever[Any]):
    """A retriever over several segments. Each document is in one segment only.

    Queries are encoded once. Every segment ranks as it would alone, and the rankings are merged by
    descending score and ascending id.
    """

    def __init__(self, segments: Sequence[RetrieverSegment]) -> None:
        self.segments = tuple(segments)
        self.first = self.segments[0].retriever
        self.fingerprint: str = self.first.fingerprint
        self.candidate_depth = self.first.candidate_depth
        self.can_explain = self.first.can_explain

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Encode query texts once for all segments, which share one encoder."""
        return self.first.encode_queries(texts)

    def encode_typed(self, queries: Sequence[TypedQuery]) -> Any:
        """Encode queries as people type them, once for all segments, which share one encoder."""
        return self.first.encode_typed(queries)

    def search_encoded(
        self, queries: Any, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents of all segments for each query, best first.

        Raises:
            FreshetError: If a document in `allowed` is in no segment.
        """
        rankings: list[list[Ranking]] = []
        if allowed is None:
            for segment in self._segments_with_documents():
                search = segment.retriever.search_encoded
                rankings.append(_search_remaining(segment, search, queries, k))
        else:
            for segment, documents in _group_by_segment(self.segments, allowed).items():
                rankings.append(segment.retriever.search_encoded(queries, k, documents))
        return _merge_rankings(rankings, len(queries), k)

    def score_encoded(self, queries: Any, candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Score each candidate in the segment that contains it.

        Raises:
            FreshetError: If a candidate is in no segment.
        """
        return [
            self._score_documents(queries[i : i + 1], documents)
            for i, documents in enumerate(candidates)
        ]

    def _score_documents(self, query: Any, documents: Sequence[str]) -> np.ndarray:
        """Return the score of each document (n,) by the segment that contains it, float64."""
        score_of: dict[str, float] = {}
        for segment, segment_documents in _group_by_segment(self.segments, documents).items():
            (scores,) = segment.retriever.score_encoded(query, [segment_documents])
            score_of.update(zip(segment_documents, scores.tolist(), strict=True))
        return np.array([score_of[document] for document in documents], np.float64)

    def best_passage_encoded(self, query: Any, document_id: str) -> int:
        """Return the number of the document's passage that answers the query best."""
        segment = require_segment(self.segments, document_id)
        return segment.retriever.best_passage_encoded(query, document_id)

    def variants(self) -> Mapping[str, Search]:
        """Return other ways to search, each over all segments; see `Retriever.variants`."""
        return {name: partial(self._search_variant, name) for name in self.first.variants()}

    def _search_variant(
        self, name: str, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Search all segments in another way that the kind offers; see `Retriever.variants`."""
        if allowed is not None:
            raise FreshetError(
                f"variant {name} cannot filter the documents of several segments; "
                "search without a filter, or use the main search"
            )
        rankings = []
        for segment in self._segments_with_documents():
            search = segment.retriever.variants()[name]
            rankings.append(_search_remaining(segment, search, texts, k))
        return _merge_rankings(rankings, len(texts), k)

    def without_known_words(self) -> SegmentedRetriever:
        """Return the same search without known queries; this one if no known query counts."""
        plain_segments: list[RetrieverSegment] = []
        counts_known_queries = False
        for segment in self.segments:
            retriever: Any = segment.retriever.without_known_words()
            plain_segments.append(segment.of(retriever))
            # A retriever returns itself if known queries do not count for it.
            if retriever is not segment.retriever:
                counts_known_queries = True
        return SegmentedRetriever(plain_segments) if counts_known_queries else self

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return the contributions of the matched tokens, the heaviest first.

        Raises:
            FreshetError: If the kind does not score by token.
        """
        return require_segment(self.segments, document_id).retriever.explain(text, document_id)

    def _segments_with_documents(self) -> list[RetrieverSegment]:
        return [segment for segment in self.segments if segment.documents]


def find_segment(segments: Sequence[Segment], document_id: str) -> Segment | None:
    """Return the segment that contains a document, or None.

    The newest segment is asked first, because recent documents change most often.
    """
    for segment in reversed(segments):
        if document_id in segment:
            return segment
    return None


def require_segment(segments: Sequence[Segment], document_id: str) -> Segment:
    """Return the segment that contains a document.

    Raises:
        FreshetError: If no segment contains it.
    """
    segment = find_segment(segments, document_id)
    if segment is None:
        raise FreshetError(
            f"the collection holds no document {document_id!r}: it was never added, or is deleted"
        )
    return segment


def _group_by_segment(
    segments: Sequence[RetrieverSegment], document_ids: Collection[str]
) -> dict[RetrieverSegment, Any]:
    """Group documents by the segment that contains them; FreshetError if one is in no segment.

    A group is a collection of document ids.
    """
    if isinstance(document_ids, AllowedDocuments):
        return _allowed_by_segment(segments, document_ids)

    groups: dict[RetrieverSegment, Collection[str]] = {}
    missing = set(document_ids)
    for segment in reversed(segments):
        documents = segment.rows.intersection(missing) - segment.removed
        if documents:
            groups[segment] = list(documents)
            missing -= documents

    if missing:
        # This call raises the error, whose message names one of the missing documents.
        require_segment(segments, min(missing))
    return groups


def _allowed_by_segment(
    segments: Sequence[RetrieverSegment], allowed: AllowedDocuments
) -> dict[RetrieverSegment, Any]:
    """Return the allowed documents of each segment that has some.

    Raises:
        FreshetError: If the filter was made for another number of segments.
    """
    # `masks` raises FreshetError if the filter does not fit the number of segments.
    allowed.masks(len(segments))
    groups = {}
    for number, segment in enumerate(segments):
        documents = allowed.in_segment(number)
        if len(documents):
            groups[segment] = documents
    return groups


def _search_remaining(
    segment: RetrieverSegment, search: Callable[[Any, int], list[Ranking]], queries: Any, k: int
) -> list[Ranking]:
    """Return the k best documents of a segment that are not removed, for each query.

    A ranking has fewer than k documents only if no other documents match.
    """
    removed = segment.removed
    if not removed:
        return search(queries, k)
    return search_filtered(
        search,
        queries,
        k,
        keep=lambda document: document not in removed,
        first_depth=k + EXTRA_DOCUMENTS,
        max_depth=k + len(removed),
    )


def _merge_rankings(
    rankings: Sequence[Sequence[Ranking]], query_count: int, k: int
) -> list[Ranking]:
    """Merge the rankings of all segments for each of the queries, and keep the k best.

    Args:
        rankings: For each segment, one ranking per query.
        query_count: Number of queries.
        k: Number of documents per query.
    """
    if len(rankings) == 1:
        return [list(ranking[:k]) for ranking in rankings[0]]

    merged = []
    for i in range(query_count):
        hits = chain.from_iterable(segment_rankings[i] for segment_rankings in rankings)
        merged.append(rank_best_first(hits, k))
    return merged
