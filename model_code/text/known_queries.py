"""Known queries: texts that a document is known to answer.

Known queries come from judgements, from the rows that documents arrived with, and from feedback.
Search can count their words as words of the document. The functions here give the same result for
the same queries in any order, so the order of arrival does not matter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from model_code.text.words import split_search_words, split_words

MIN_DUPLICATE_JACCARD = 0.8
"""Smallest Jaccard similarity of the word sets of two queries that are near-duplicates."""

MERGED_PER_QUERY = 4
"""Number of a document's queries that are compared for each one that may count. It bounds the time
that many thumbs for one document can take."""


class QuerySource(StrEnum):
    """Where a known query comes from."""

    QRELS = "qrels"
    ROW = "row"
    FEEDBACK = "feedback"


PUBLIC_SOURCES = frozenset({QuerySource.QRELS, QuerySource.ROW})
"""Sources whose query texts are shown. Users of the search typed the texts of other sources."""


@dataclass(frozen=True)
class KnownQuery:
    """A query, with evidence for or against the statement that one document answers it.

    Attributes:
        document_id: Id of the document.
        text: Text of the query.
        source: Where the query comes from.
        weight: Strength of the evidence, negative for evidence against the statement. It depends on
            `source`: the grade of a judgement; 1 for a query in a document's row; the number of
            thumbs up for feedback.
        date: Date of the evidence in ISO format, if it is known.
    """

    document_id: str
    text: str
    source: QuerySource
    weight: float = 1.0
    date: str | None = None

    @cached_property
    def key(self) -> tuple[str, str]:
        """Document id and normalised text, which are equal for equal queries of a document."""
        return self.document_id, normalize_query(self.text)

    @property
    def is_public(self) -> bool:
        """Whether the text may be shown: it was not typed by a user of the search."""
        return self.source in PUBLIC_SOURCES

    @cached_property
    def words(self) -> frozenset[str]:
        """The different words of the normalised text."""
        return frozenset(self.key[1].split())


def normalize_query(text: str) -> str:
    """Return the words of a query in lower case, without punctuation, and in normal width.

    Two queries count as equal if their normalised texts are equal. The words are those that a
    search can find, so C, C++ and C# are different words.

    >>> normalize_query(" How do I sort\\na LIST?")
    'how do i sort a list'
    >>> normalize_query("Sort in C++!")
    'sort in c++'
    >>> normalize_query("???")
    '???'
    """
    folded = _fold(text)
    words = split_search_words(folded)
    return " ".join(words or folded.split())


def words_without_signs(text: str) -> str:
    """Return the words of a query like `normalize_query`, but without the signs of names.

    It recognises a query that must not be used, however its signs are written.

    >>> words_without_signs("Sort in C++!")
    'sort in c'
    """
    folded = _fold(text)
    words = split_words(folded)
    return " ".join(words or folded.split())


def _fold(text: str) -> str:
    """Return a text in lower case and in normal width."""
    return unicodedata.normalize("NFKC", text).casefold()


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of words; 0 if both are empty.

    It is the share of the common words among all words of both sets.

    >>> jaccard(frozenset({"sort", "list"}), frozenset({"sort", "table"}))
    0.3333333333333333
    """
    union = len(left | right)
    return len(left & right) / union if union else 0.0


def resolve_queries(queries: Iterable[KnownQuery]) -> list[KnownQuery]:
    """Add up the evidence for each query of a document, and keep queries with positive evidence.

    The weights of equal queries are added, so that a thumb down cancels a thumb up or a query of a
    row. If equal queries come from several sources, the text of a public source is kept, because it
    may be shown.

    Args:
        queries: Known queries of any documents, in any order.

    Returns:
        One query per document and normalised text whose weights sum to more than 0. They are
        ordered by ascending document id, then by descending weight, ascending date and ascending
        text.

    >>> up = KnownQuery("a", "Sort a list", QuerySource.FEEDBACK)
    >>> down = KnownQuery("a", "sort a list?", QuerySource.FEEDBACK, weight=-1)
    >>> resolve_queries([up, down])
    []
    """
    groups: dict[tuple[str, str], list[KnownQuery]] = {}
    for query in queries:
        groups.setdefault(query.key, []).append(query)

    resolved: list[KnownQuery] = []
    for group in groups.values():
        # The sum of floats depends on their order, and the order of the queries must not matter.
        total = sum(sorted(query.weight for query in group))
        if total > 0:
            evidence_for = [query for query in group if query.weight > 0]
            shown = min(evidence_for, key=lambda query: (not query.is_public, _rank(query)))
            resolved.append(replace(shown, weight=total))
    resolved.sort(key=lambda query: (query.document_id, _rank(query)))
    return resolved


@dataclass(frozen=True)
class KnownQueryLimits:
    """Limits of the known queries whose words count as words of one document.

    Attributes:
        max_queries: Largest number of queries.
        max_words: Largest number of words in all these queries together.
    """

    max_queries: int = 16
    max_words: int = 64


def select_queries(
    queries: Iterable[KnownQuery], limits: KnownQueryLimits | None = None
) -> list[KnownQuery]:
    """Return the known queries whose words count as words of their documents.

    Near-duplicates of a document are merged; see `merge_near_duplicates`. The merged queries are
    taken by descending weight, ascending date and ascending text, up to the limits. A query is
    skipped if its words exceed the limit. So queries with little evidence, or new ones, cannot
    displace others.

    Args:
        queries: Known queries of any documents, in any order.
        limits: Limits for each document; None means the default limits.

    Returns:
        The selected queries, by ascending document id, then in the order in which they are taken.

    >>> texts = ["how to sort a list", "how to sort a list quickly", "order rows"]
    >>> queries = [KnownQuery("a", text, QuerySource.ROW) for text in texts]
    >>> [(query.text, query.weight) for query in select_queries(queries)]
    [('how to sort a list', 2.0), ('order rows', 1.0)]
    """
    limits = limits or KnownQueryLimits()
    selected: list[KnownQuery] = []
    for resolved in by_document(resolve_queries(queries)).values():
        taken: list[KnownQuery] = []
        words_left = limits.max_words
        for query in merge_near_duplicates(resolved, MERGED_PER_QUERY * limits.max_queries):
            _, normalized_text = query.key
            word_count = len(normalized_text.split())
            if len(taken) == limits.max_queries:
                break
            if word_count > words_left:
                continue
            taken.append(query)
            words_left -= word_count
        selected.extend(taken)
    return selected


def merge_near_duplicates(resolved: Sequence[KnownQuery], most: int) -> list[KnownQuery]:
    """Merge near-duplicates among the queries of one document.

    The queries are visited in their order, but public ones come first among the first `most`. Each
    query is merged into the first kept query of which it is a near-duplicate. Without such a query
    it is kept itself. To be a near-duplicate is no equivalence relation, so the order decides; it
    follows from the set of queries.

    So a public query keeps its text and source beside a near-duplicate with more thumbs. If IncDSI
    solves the vector of the document, a judged query is then not left out.

    The weights of public queries are added. Of all merged queries that come from feedback alone,
    the largest weight is added. One person may have given thumbs to several of them, and a person
    counts once.

    Evidence against a query never reaches its near-duplicates. They can mean the opposite, such as
    long questions that differ in "start" and "stop".

    Args:
        resolved: Queries of one document, in the order of `resolve_queries`.
        most: Largest number of queries to keep. The others, which have the least evidence, are left
            out if they are near-duplicates of no kept query.

    Returns:
        The kept queries with the weights of all queries that were merged, by descending weight,
        ascending date and ascending text.
    """
    # Queries after the first `most` stay behind them, so that many public queries with little
    # evidence cannot displace thumbs with more evidence.
    heaviest = sorted(resolved[:most], key=lambda query: not query.is_public)

    clusters: list[list[KnownQuery]] = []
    for query in [*heaviest, *resolved[most:]]:
        for cluster in clusters:
            kept = cluster[0]
            if is_near_duplicate(query.words, kept.words):
                cluster.append(query)
                break
        else:
            if len(clusters) < most:
                clusters.append([query])

    merged: list[KnownQuery] = []
    for cluster in clusters:
        # The queries of a cluster have a fixed order, so the rounding of the sum is fixed, too.
        public_weight = sum(query.weight for query in cluster if query.is_public)
        other_weights = [query.weight for query in cluster if not query.is_public]
        weight = public_weight + max(other_weights, default=0.0)
        merged.append(replace(cluster[0], weight=weight))
    merged.sort(key=_rank)
    return merged


def is_near_duplicate(left: frozenset[str], right: frozenset[str]) -> bool:
    """Return whether two sets of words are equal, or differ by a small share of their words."""
    return left == right or jaccard(left, right) >= MIN_DUPLICATE_JACCARD


def by_document(queries: Iterable[KnownQuery]) -> dict[str, list[KnownQuery]]:
    """Group queries by document id. Queries of a document keep their order."""
    grouped: dict[str, list[KnownQuery]] = {}
    for query in queries:
        grouped.setdefault(query.document_id, []).append(query)
    return grouped


def _rank(query: KnownQuery) -> tuple[float, str, str, str]:
    """Return a sort key: descending weight, then ascending date, text and source."""
    return (-query.weight, query.date or "", query.text, query.source)
