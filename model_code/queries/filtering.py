"""Which pseudo-queries are kept: one that fits other documents, or not its own, would call right answers wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from model_code.queries.pseudo_queries import PseudoQuery
from model_code.words import words

EMPTY = "empty"
REPEATED = "repeated"
AMBIGUOUS = "several_documents"
REASONS = {
    EMPTY: "no letter or digit",
    REPEATED: "the same document has the same query already",
    AMBIGUOUS: "another document contains it word for word, or has the same query",
}


def normalised(text: str) -> str:
    """Letters and digits in lower case, joined by single spaces: texts that differ in nothing else are the same query.

    >>> normalised("  Sort an *Array*, in-place!")
    'sort an array in place'
    """
    return " ".join(words(text.casefold()))


def reasons_to_drop(queries: Sequence[PseudoQuery], documents: Mapping[str, str]) -> list[str | None]:
    """For each query one of `REASONS` to drop it, or None to keep it.

    `documents` maps ids to the texts that are searched.

    >>> queries = [PseudoQuery("d1", "Returns self.", "cloze"), PseudoQuery("d2", "fits a tree", "cloze")]
    >>> reasons_to_drop(queries, {"d1": "Learns. Returns self.", "d2": "Fits a tree and returns self."})
    ['several_documents', None]
    """
    texts = {i: f" {normalised(text)} " for i, text in documents.items()}
    frequency = Counter(term for text in texts.values() for term in set(text.split()))
    normal = [(query.document_id, normalised(query.text)) for query in queries]
    fitting = _found_word_for_word({text for _, text in normal}, texts, frequency)
    for document_id, text in normal:
        fitting[text].add(document_id)

    seen: set[tuple[str, str]] = set()
    reasons: list[str | None] = []
    for document_id, text in normal:
        repeated = (document_id, text) in seen
        reason = EMPTY if not text else AMBIGUOUS if len(fitting[text]) > 1 else REPEATED if repeated else None
        reasons.append(reason)
        seen.add((document_id, text))
    return reasons


def _found_word_for_word(
    queries: Iterable[str], texts: Mapping[str, str], frequency: Mapping[str, int]
) -> dict[str, set[str]]:
    """For each normalised query the documents whose text contains it; only those with its rarest term are searched."""
    by_term: dict[str, list[str]] = {}
    containing: dict[str, set[str]] = {query: set() for query in queries}
    for query in containing:
        if query:
            rarest = min(query.split(), key=lambda term: (frequency.get(term, 0), term))
            by_term.setdefault(rarest, []).append(query)
    for document_id, text in texts.items():
        for term in by_term.keys() & set(text.split()):
            for query in by_term[term]:
                if f" {query} " in text:
                    containing[query].add(document_id)
    return containing
