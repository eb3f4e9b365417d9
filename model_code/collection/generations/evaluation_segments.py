"""Evaluate a generation without the vectors that IncDSI solved.

IncDSI solves the vector of a document so that certain queries find it. If such a query is used for
an evaluation, the result is too good. So the solved vectors are replaced by plain encodings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.segment import keep_unchanged_encodings, write_segment
from model_code.retrieval.indexed import RetrieverSegment
from model_code.text.known_queries import KnownQuery


def judging_segments(
    searcher: Searcher, held_out: frozenset[str], folder: Path, with_feedback: bool = True
) -> list[RetrieverSegment]:
    """Return the segments to search in an evaluation, without knowledge of its queries.

    The generation can be older than the judgements. So it can contain a query of the evaluation as
    a known query of a document. The returned segments leave such queries out of the words of
    documents. Vectors that were solved with such a query are replaced by encodings.

    Args:
        searcher: Searcher of the generation.
        held_out: Hashes of the queries of the evaluation; see `query_hash`.
        folder: Empty folder for the encodings. It must exist as long as the segments are used.
        with_feedback: Whether queries from feedback stay known; see `Searcher.segments_without`.
    """
    segments = searcher.segments_without(held_out, with_feedback)
    document_ids = documents_solved_with(searcher.generation, hashes=held_out)
    return with_encodings(searcher, segments, document_ids, folder)


def with_encodings(
    searcher: Searcher,
    segments: Sequence[RetrieverSegment],
    document_ids: Collection[str],
    folder: Path,
) -> list[RetrieverSegment]:
    """Replace the vectors of the given documents by their encodings.

    Args:
        searcher: Searcher of the generation.
        segments: Segments of the generation.
        document_ids: Ids of the documents whose vectors are replaced.
        folder: Empty folder for the encodings. It must exist as long as the segments are used.

    Returns:
        The segments without these documents, and a further segment with their encodings.
    """
    documents = searcher.documents(document_ids)
    if not documents:
        return list(segments)
    puts = [document for _, document in sorted(documents.items())]
    text = searcher.generation.text
    keep_unchanged_encodings(searcher.base, searcher.views, puts, text)
    encoded = write_segment(folder, searcher.base, puts, text, None)

    # The documents are removed from their segments. Their changed known queries move with them to
    # the new segment.
    known: dict[str, Sequence[KnownQuery]] = {}
    new_segments: list[RetrieverSegment] = []
    for segment in segments:
        moved = segment.rows.intersection(documents.keys())
        for document_id in moved - segment.removed:
            if document_id in segment.known:
                known[document_id] = segment.known[document_id]
        new_segments.append(replace(segment, removed=segment.removed | moved))
    new_segments.append(RetrieverSegment(encoded.retriever, encoded.rows, known=known))
    return new_segments
