"""Find the documents that meet the conditions of a query, such as phrases and excluded words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set

from model_code.collection.segments.documents import read_columns
from model_code.collection.segments.segment import SegmentView
from model_code.retrieval.bm25_index import Bm25Index
from model_code.text.query_syntax import ConditionMatcher, TextCondition

# Number of documents from which reading whole columns is faster than reading single rows.
MIN_DOCUMENTS_FOR_COLUMNS = 200


def documents_meeting(
    conditions: Iterable[TextCondition],
    documents: Set[str],
    views: Sequence[SegmentView],
    keyword_index: Bm25Index | None,
    language: str | None,
) -> Set[str]:
    """Return the documents that meet all conditions.

    A BM25 index tells which documents can contain the words of a condition, so that only their
    texts are read. Without an index, all texts are read.

    Args:
        conditions: Conditions of a query.
        documents: Ids of the documents to search.
        views: Segments of the generation.
        keyword_index: BM25 index of titles and texts, or None.
        language: Language of the words; see `TermAnalyzer`.

    Returns:
        Ids of the documents.
    """
    remaining = documents
    # Conditions that require words come first. They leave few documents, so that few texts are
    # read for the conditions that exclude words.
    for condition in sorted(conditions, key=lambda condition: condition.is_excluded):
        matcher = ConditionMatcher(condition, language)
        # The documents that can contain the words. Only their texts are read.
        candidates = remaining
        if keyword_index is not None:
            candidates = remaining & keyword_index.documents_with(matcher.terms)
        meeting: set[str] = set()
        for document_id, title, text in _read_texts(views, candidates):
            if matcher.meets(title, text):
                meeting.add(document_id)

        if condition.is_excluded:
            # A document that is no candidate lacks the word, so it meets the condition, too.
            failing = candidates - meeting
            remaining = remaining - failing
        else:
            remaining = meeting
    return remaining


def flags_among(
    conditions: Iterable[TextCondition],
    documents: Set[str],
    views: Sequence[SegmentView],
    keyword_index: Bm25Index | None,
    language: str | None,
) -> set[str]:
    """Find the words with a leading dash that documents contain, such as the flag `-rf`.

    In a query, "-word" excludes a word. If a document contains the word with its dash, the user
    probably means the flag of a command.

    Args:
        conditions: Conditions of a query.
        documents: Ids of all documents of the generation.
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
            candidates = documents & keyword_index.documents_with(matcher.terms)
        texts = _read_texts(views, candidates)
        if any(matcher.contains_literal(text) for _, _, text in texts):
            flags.add(condition.literal)
    return flags


def _read_texts(
    views: Sequence[SegmentView], document_ids: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each live document among `document_ids`.

    Many documents are read column by column, which is faster than row by row.
    """
    for view in views:
        wanted = {document_id for document_id in document_ids if document_id in view}
        if len(wanted) < MIN_DOCUMENTS_FOR_COLUMNS:
            rows = view.segment.document_file.read(wanted, ("title", "text"))
            for document_id, row in rows.items():
                yield document_id, row["title"], row["text"]
            continue
        columns = read_columns(view.segment.documents, "document_id", "title", "text")
        for document_id, title, text in zip(*columns, strict=True):
            if document_id in wanted:
                yield document_id, title, text
