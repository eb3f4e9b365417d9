"""Known queries whose words count as words of their documents in BM25.

A known query is a query that a document is known to answer. It counts for all passages of the
document. The known queries of a segment's documents are a segment as well. The module counts their
terms for each passage, and the terms of one document's queries that a score has to ignore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from model_code.retrieval.bm25_segment import Bm25Segment, join_ranges
from model_code.retrieval.id_map import IdMap, IdMaps
from model_code.settings import require
from model_code.text.known_queries import KnownQuery, KnownQueryLimits, select_queries


@dataclass(frozen=True)
class KnownWords:
    """How the words of known queries count as words of their documents.

    Attributes:
        weight: Weight u of one occurrence, a multiple of 1/4.
        in_length: Whether the words count towards the length of a passage.
        limits: Largest numbers of known queries and of their words that count for one document.
    """

    weight: float
    in_length: bool
    limits: KnownQueryLimits = KnownQueryLimits()

    def __post_init__(self) -> None:
        """Check that the weight is a multiple of 1/4, so that weighted sums of counts are exact.

        Raises:
            SettingsError: If the weight is negative or no multiple of 1/4.
        """
        require(
            self.weight >= 0 and (4 * self.weight).is_integer(),
            f"the weight of known queries is {self.weight}, but must be a multiple of 0.25",
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> KnownWords:
        """Restore an instance from the mapping that `dataclasses.asdict` made of it."""
        limits = KnownQueryLimits(**facts["limits"])
        return cls(facts["weight"], facts["in_length"], limits)


class KnownSegment:
    """The indexed known queries of the documents of one passage segment.

    Attributes:
        queries: The known queries, indexed like passages.
        ids: Document id of each passage of the passage segment.
    """

    def __init__(self, queries: Bm25Segment, ids: IdMap) -> None:
        self.queries = queries
        self.ids = ids

    @classmethod
    def build(
        cls,
        known: Mapping[str, Sequence[KnownQuery]],
        ids: IdMap,
        limits: KnownQueryLimits,
        language: str | None,
    ) -> KnownSegment:
        """Index the known queries of documents.

        Args:
            known: Known queries by document id.
            ids: Document id of each passage of the passage segment.
            limits: Largest numbers of known queries and of their words that count for one document.
            language: Language of the stemmer, see `TermAnalyzer`.
        """
        queries = select_queries(chain.from_iterable(known.values()), limits)
        texts = [query.text for query in queries]
        document_ids = [query.document_id for query in queries]
        return cls(Bm25Segment.build(texts, document_ids, language), ids)

    @cached_property
    def starts(self) -> np.ndarray:
        """Start of each query's rows in `passage_rows`, then their number, shape (q + 1,)."""
        sizes = [len(rows) for rows in self._rows_of_queries]
        return np.cumsum([0, *sizes])

    @cached_property
    def passage_rows(self) -> np.ndarray:
        """Rows of the passages of each query's document, one query after the other, int64.

        A row is a position in the passage segment.
        """
        return np.fromiter(chain.from_iterable(self._rows_of_queries), np.int64)

    @property
    def _rows_of_queries(self) -> list[list[int]]:
        rows = self.ids.rows_by_document
        return [rows[document] for document in self.queries.ids.document_ids]

    @cached_property
    def _postings_by_query(self) -> np.ndarray:
        """Positions of all postings of `queries`, one query after the other, shape (P,)."""
        return np.argsort(self.queries.rows, kind="stable")

    @cached_property
    def _first_postings(self) -> np.ndarray:
        """Start of each query in `_postings_by_query`, followed by their number, (q + 1,)."""
        sizes = np.bincount(self.queries.rows, minlength=len(self.queries.ids))
        return np.concatenate([[0], np.cumsum(sizes)])

    def count_terms(self, query: int) -> Counter[str]:
        """Return how often each term occurs in a query.

        Args:
            query: Row of the query.
        """
        start, stop = self._first_postings[query : query + 2].tolist()
        postings = self._postings_by_query[start:stop]
        # A posting belongs to the last term whose postings start at or before it.
        term_numbers = np.searchsorted(self.queries.starts, postings, side="right") - 1
        terms = [self.queries.vocabulary[number] for number in term_numbers.tolist()]
        frequencies = self.queries.frequencies[postings].tolist()
        return Counter(dict(zip(terms, frequencies, strict=True)))


class KnownPart(NamedTuple):
    """The known queries of one segment in an index of several segments.

    A segment may have two parts: its indexed known queries, and those that replaced some of them.

    Attributes:
        segment: Number of the segment that contains the documents of the queries.
        known: The known queries.
        excluded: Documents whose queries do not count, because they are removed or replaced.
    """

    segment: int
    known: KnownSegment
    excluded: frozenset[str] = frozenset()


class KnownCounts:
    """Counts of terms in known queries, for each passage of an index of several segments."""

    def __init__(self, parts: Sequence[KnownPart], ids: IdMaps) -> None:
        # Leave out parts without queries. `first_rows` has the first passage of each part's
        # segment.
        self.parts = [part for part in parts if len(part.known.queries.ids)]
        self.first_rows = [ids.first_rows[part.segment] for part in self.parts]
        self.passage_count = len(ids)
        # For each part, a mask of the queries that count; None if all queries count.
        self.is_counted: list[np.ndarray | None] = []
        for part in self.parts:
            query_ids = part.known.queries.ids
            excluded = query_ids.intersection(part.excluded)
            mask = None
            if excluded:
                mask = np.ones(len(query_ids), bool)
                mask[query_ids.rows_of(excluded)] = False
            self.is_counted.append(mask)

    def of_term(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages whose documents have a term in a known query, with its counts.

        Returns:
            Ascending passage rows, shape (p,), and the term's total occurrences in the counted
            known queries of each passage's document, shape (p,).
        """
        # For each query with the term: the passages it counts for, and the term's occurrences.
        row_parts = [np.empty(0, np.int64)]
        count_parts = [np.empty(0, np.int32)]
        for number, part in enumerate(self.parts):
            segment = part.known.queries
            postings = segment.postings(term)
            if postings.start < postings.stop:
                queries = segment.rows[postings]
                passage_rows, sizes = self._passages_of(number, queries)
                row_parts.append(passage_rows)
                count_parts.append(np.repeat(segment.frequencies[postings], sizes))

        # Several known queries may count for one passage, so their occurrences are added up.
        rows, positions = np.unique(np.concatenate(row_parts), return_inverse=True)
        counts = np.bincount(positions, np.concatenate(count_parts), len(rows))
        return rows, counts

    def lengths(self) -> np.ndarray:
        """Return the number of known-query terms of each passage, shape (n,), float64."""
        lengths = np.zeros(self.passage_count)
        for number, part in enumerate(self.parts):
            query_lengths = part.known.queries.lengths
            all_queries = np.arange(len(query_lengths))
            rows, sizes = self._passages_of(number, all_queries)
            # A query counts for every passage of its document, so each gets the query's length.
            lengths += np.bincount(rows, np.repeat(query_lengths, sizes), self.passage_count)
        return lengths

    def queries_of(self, document_id: str) -> Iterator[tuple[KnownSegment, np.ndarray]]:
        """Yield each segment of known queries with the rows of a document's counted queries."""
        for part, is_counted in zip(self.parts, self.is_counted, strict=True):
            query_ids = part.known.queries.ids
            if document_id in query_ids:
                rows = query_ids.rows_of([document_id])
                if is_counted is not None:
                    rows = rows[is_counted[rows]]
                yield part.known, rows

    def _passages_of(self, number: int, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages of the documents that some known queries belong to.

        Args:
            number: Number of the part.
            queries: Rows of the known queries, shape (q,).

        Returns:
            Rows of the passages in all segments, one query after the other. The number of passages
            of each query, shape (q,); 0 for a query that does not count.
        """
        known = self.parts[number].known
        # Where the passages of each query start in `known.passage_rows`, and how many there are.
        first = known.starts[queries]
        sizes = known.starts[queries + 1] - first
        is_counted = self.is_counted[number]
        if is_counted is not None:
            sizes = np.where(is_counted[queries], sizes, 0)
        rows = known.passage_rows[join_ranges(first, sizes)]
        return rows + self.first_rows[number], sizes

    def of_terms(self, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the passages whose documents have one of several terms in a known query.

        Args:
            terms: The different terms.

        Returns:
            For each occurrence, in no particular order: the row of a passage (p,), the position of
            the term in `terms` (p,), and how often one known query has the term (p,). A passage is
            repeated for each known query of its document that has the term.
        """
        row_parts = [np.empty(0, np.int64)]
        term_positions = [np.empty(0, np.int64)]
        counts = [np.empty(0, np.int32)]
        for number, part in enumerate(self.parts):
            segment = part.known.queries
            postings, positions = segment.postings_of_terms(terms)
            rows, sizes = self._passages_of(number, segment.rows[postings])
            row_parts.append(rows)
            term_positions.append(np.repeat(positions, sizes))
            counts.append(np.repeat(segment.frequencies[postings], sizes))
        return np.concatenate(row_parts), np.concatenate(term_positions), np.concatenate(counts)


class PairWithout(NamedTuple):
    """A document that is scored for a query, without some of its known queries.

    Attributes:
        number: Position of the pair among all pairs.
        query_terms: How often each term occurs in the query.
        document_id: Id of the document.
        known_terms: How often each term occurs in the document's known queries.
        ignored_terms: How often each term occurs in the known queries to ignore.
    """

    number: int
    query_terms: Counter[str]
    document_id: str
    known_terms: Counter[str]
    ignored_terms: Counter[str]


class PairTerms(NamedTuple):
    """The query terms of several pairs: those of the first pair, then of the second, and so on.

    Attributes:
        terms: The t terms.
        query_counts: How often the query has each term, shape (t,).
        known_counts: How often all known queries of the document have it, shape (t,).
        ignored_counts: How often the known queries to ignore have it, shape (t,).
    """

    terms: list[str]
    query_counts: np.ndarray
    known_counts: np.ndarray
    ignored_counts: np.ndarray

    @classmethod
    def collect(cls, pairs: Sequence[PairWithout]) -> PairTerms:
        """Return the query terms of all pairs in flat arrays, one pair after the other."""
        terms: list[str] = []
        query_counts: list[int] = []
        known_counts: list[int] = []
        ignored_counts: list[int] = []
        for pair in pairs:
            for term, count in pair.query_terms.items():
                terms.append(term)
                query_counts.append(count)
                known_counts.append(pair.known_terms[term])
                ignored_counts.append(pair.ignored_terms[term])
        return cls(terms, np.array(query_counts), np.array(known_counts), np.array(ignored_counts))


class PairMatches(NamedTuple):
    """All matches of several pairs: a query term with a passage of the pair's document.

    The passage need not contain the term. Terms are numbered as in `PairTerms`, and passages
    through the documents of all pairs.

    Attributes:
        term_numbers: Number of the term of each match, ascending, shape (m,).
        passage_numbers: Number of the passage of each match, ascending per term, shape (m,).
        first_matches: Position of the first match of each term, shape (t,).
    """

    term_numbers: np.ndarray
    passage_numbers: np.ndarray
    first_matches: np.ndarray


def match_terms(pairs: Sequence[PairWithout], passage_counts: np.ndarray) -> PairMatches:
    """Match the query terms of each pair with all passages of its document.

    Args:
        pairs: The n pairs.
        passage_counts: Number of passages of each pair's document, at least 1, shape (n,).
    """
    term_counts = np.array([len(pair.query_terms) for pair in pairs])
    matches_of_terms = np.repeat(passage_counts, term_counts)
    first_matches = np.cumsum(matches_of_terms) - matches_of_terms
    term_numbers = np.repeat(np.arange(len(matches_of_terms)), matches_of_terms)

    first_passages = np.cumsum(passage_counts) - passage_counts
    passage_numbers = join_ranges(np.repeat(first_passages, term_counts), matches_of_terms)
    return PairMatches(term_numbers, passage_numbers, first_matches)
