"""Find the documents that meet the conditions of a query, such as phrases and excluded words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from model_code.collection.segments.documents import read_columns
from model_code.collection.segments.segment import SegmentView
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.id_map import AllowedDocuments
from model_code.text.query_syntax import ConditionMatcher, TextCondition

# Share of a segment's documents from which reading whole columns is faster than single rows.
MIN_SHARE_FOR_COLUMNS = 0.25


def documents_meeting(
    conditions: Iterable[TextCondition],
    documents: AllowedDocuments,
    views: Sequence[SegmentView],
    keyword_index: Bm25Index | None,
    language: str | None,
) -> AllowedDocuments:
    """Return the documents that meet all conditions.

    A BM25 index tells which documents can contain the words of a condition, so that only their
    texts are read. Without an index, all texts are read.

    Args:
        conditions: Conditions of a query.
        documents: The documents to search, all of them live.
        views: Segments of the generation.
        keyword_index: BM25 index of titles and texts, or None.
        language: Language of the words; see `TermAnalyzer`.
    """
    remaining = documents
    # Conditions that require words come first. They leave few documents, so that few texts are
    # read for the conditions that exclude words.
    for condition in sorted(conditions, key=lambda condition: condition.is_excluded):
        matcher = ConditionMatcher(condition, language)
        # The documents that can contain the words. Only their texts are read.
        candidates = remaining
        if keyword_index is not None:
            candidates = remaining.intersection(keyword_index.documents_with(matcher.terms))
        containing = _documents_containing(matcher, views, candidates)
        if condition.is_excluded:
            remaining = remaining.difference(containing)
        else:
            remaining = containing
    return remaining


def _documents_containing(
    matcher: ConditionMatcher, views: Sequence[SegmentView], candidates: AllowedDocuments
) -> AllowedDocuments:
    """Return those candidates whose titles or texts contain the words of a condition."""
    segments = []
    for view, document_ids in _split_by_segment(views, candidates):
        containing: list[str] = []
        for document_id, title, text in _read_texts(view, document_ids):
            if matcher.contains(title, text):
                containing.append(document_id)
        segments.append((view.segment.rows, view.segment.rows.mask_of(containing)))
    return AllowedDocuments(segments)


def flags_among(
    conditions: Iterable[TextCondition],
    documents: AllowedDocuments,
    views: Sequence[SegmentView],
    keyword_index: Bm25Index | None,
    language: str | None,
) -> set[str]:
    """Find the words with a leading dash that documents contain, such as the flag `-rf`.

    In a query, "-word" excludes a word. If a document contains the word with its dash, the user
    probably means the flag of a command.

    Args:
        conditions: Conditions of a query.
        documents: All live documents of the generation.
        views: Segments of the generation.
        keyword_index: BM25 index of titles and texts, or None.
        language: Language of the words; see `TermAnalyzer`.

    Returns:
        The flags, with their dashes.
    """
    flags: set[str] = set()
    for condition in conditions:
        if not condition.literal:
            continue
        matcher = ConditionMatcher(condition, language)
        candidates = documents
        if keyword_index is not None:
            candidates = documents.intersection(keyword_index.documents_with(matcher.terms))
        if _any_contains_literal(matcher, views, candidates):
            flags.add(condition.literal)
    return flags


def _any_contains_literal(
    matcher: ConditionMatcher, views: Sequence[SegmentView], candidates: AllowedDocuments
) -> bool:
    """Return whether the text of any candidate contains the word with its dash."""
    for view, document_ids in _split_by_segment(views, candidates):
        for _, _, text in _read_texts(view, document_ids):
            if matcher.contains_literal(text):
                return True
    return False


def _split_by_segment(
    views: Sequence[SegmentView], documents: AllowedDocuments
) -> Iterator[tuple[SegmentView, list[str]]]:
    """Yield each segment with the ids of the selected documents in it."""
    for number, view in enumerate(views):
        yield view, list(documents.in_segment(number))


def _read_texts(view: SegmentView, document_ids: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of some documents of a segment.

    Many documents are read column by column, which is faster than row by row.
    """
    if len(document_ids) < MIN_SHARE_FOR_COLUMNS * view.segment.rows.documents:
        rows = view.segment.document_file.read(document_ids, ("title", "text"))
        for document_id, row in rows.items():
            yield document_id, row["title"], row["text"]
        return

    wanted = set(document_ids)
    columns = read_columns(view.segment.documents, "document_id", "title", "text")
    for document_id, title, text in zip(*columns, strict=True):
        if document_id in wanted:
            yield document_id, title, text
