"""Drops pseudo-queries that fit other documents or not their own: trained on, they would call right answers wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from model_code.queries.pseudo_query import PseudoQuery

EMPTY = "empty"
REPEATED = "repeated"
AMBIGUOUS = "several_documents"
COMMON = "common_terms"
LOST = "not_found"
REASONS = {
    EMPTY: "no letter or digit",
    REPEATED: "the same document has the same query already",
    AMBIGUOUS: "another document contains it word for word, or has the same query",
    COMMON: "each of its terms occurs in more than `distinctive_within` documents",
    LOST: "a search for it does not find its document among the first `consistency_filter.depth`",
}


def normalised(text: str) -> str:
    """Letters and digits in lower case, joined by single spaces: texts that differ in nothing else are the same query.

    >>> normalised("  Sort an *Array*, in-place!")
    'sort an array in place'
    """
    return " ".join(re.findall(r"\w+", text.casefold()))


def reasons_to_drop(
    queries: Sequence[PseudoQuery], documents: Mapping[str, str], distinctive_within: int | None = None
) -> list[str | None]:
    """For each query one of `REASONS` to drop it, or None to keep it.

    `documents` maps ids to the texts that are searched. With `distinctive_within` = n, a query needs at least one term
    that occurs in at most n documents.

    >>> queries = [PseudoQuery("d1", "Returns self.", "cloze"), PseudoQuery("d2", "fits a tree", "cloze")]
    >>> reasons_to_drop(queries, {"d1": "Learns. Returns self.", "d2": "Fits a tree and returns self."})
    ['several_documents', None]
    """
    texts = {i: f" {normalised(text)} " for i, text in documents.items()}
    frequency = Counter(term for text in texts.values() for term in set(text.split()))
    asked = [(query.document_id, normalised(query.text)) for query in queries]
    fitting = _found_word_for_word({text for _, text in asked}, texts, frequency)
    for document_id, text in asked:
        fitting[text].add(document_id)

    seen: set[tuple[str, str]] = set()
    reasons: list[str | None] = []
    for document_id, text in asked:
        if not text:
            reasons.append(EMPTY)
        elif len(fitting[text]) > 1:
            reasons.append(AMBIGUOUS)
        elif (document_id, text) in seen:
            reasons.append(REPEATED)
        elif distinctive_within is not None and _rarest(text, frequency)[0] > distinctive_within:
            reasons.append(COMMON)
        else:
            reasons.append(None)
        seen.add((document_id, text))
    return reasons


def drop_lost(reasons: Sequence[str | None], ranks: Mapping[int, int | None], depth: int) -> list[str | None]:
    """The same reasons, with `LOST` for queries kept so far that a search ranked their document for, but too low.

    ranks: query number -> its document's rank (1, 2, ...), or None if it was not found (see `round_trip.py`).

    >>> drop_lost([None, None, None, EMPTY], {0: 3, 1: None, 3: None}, depth=5)
    [None, 'not_found', None, 'empty']
    """
    lost = {query for query, rank in ranks.items() if rank is None or rank > depth}
    return [LOST if reason is None and query in lost else reason for query, reason in enumerate(reasons)]


def _rarest(text: str, frequency: Mapping[str, int]) -> tuple[int, str]:
    """The lowest document frequency among the terms of a normalised text, and the term that has it."""
    return min((frequency.get(term, 0), term) for term in text.split())


def _found_word_for_word(
    queries: Iterable[str], texts: Mapping[str, str], frequency: Mapping[str, int]
) -> dict[str, set[str]]:
    """For each normalised query the documents whose text contains it; only those with its rarest term are searched."""
    by_term: dict[str, list[str]] = {}
    found: dict[str, set[str]] = {query: set() for query in queries}
    for query in found:
        if query:
            by_term.setdefault(_rarest(query, frequency)[1], []).append(query)
    for document_id, text in texts.items():
        for term in by_term.keys() & set(text.split()):
            for query in by_term[term]:
                if f" {query} " in text:
                    found[query].add(document_id)
    return found
