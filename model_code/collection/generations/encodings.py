"""Search a generation with the encodings of documents in place of their solved vectors.

IncDSI solves a vector so that queries find the document. So these queries say nothing about how
well documents like it are found, and must not judge a search with the solved vector.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.segment import write_segment
from model_code.retrieval.indexed import RetrieverSegment
from model_code.text.known_queries import KnownQuery


def judging_segments(
    searcher: Searcher, held_out: frozenset[str], folder: Path
) -> list[RetrieverSegment]:
    """Return the segments to search when some queries judge.

    The generation may be older than the corpus that the queries belong to, and may know them. Then
    they are no words of documents, and vectors that were solved with one of them are replaced by
    encodings.

    Args:
        searcher: The generation.
        held_out: Hashes of the queries that judge; see `query_hash`.
        folder: Empty folder for the encodings, which must exist as long as the segments are used.
    """
    segments = searcher.segments_without(held_out)
    document_ids = documents_solved_with(searcher.generation, hashes=held_out)
    return with_encodings(searcher, segments, document_ids, folder)


def with_encodings(
    searcher: Searcher,
    segments: Sequence[RetrieverSegment],
    document_ids: Collection[str],
    folder: Path,
) -> list[RetrieverSegment]:
    """Return segments in which some documents have their encodings.

    Args:
        searcher: The generation.
        segments: Its segments.
        document_ids: The documents.
        folder: Empty folder for the encodings, which must exist as long as the segments are used.
    """
    documents = searcher.documents(document_ids)
    if not documents:
        return list(segments)
    puts = [document for _, document in sorted(documents.items())]
    encoded = write_segment(folder, searcher.base, puts, searcher.generation.text, None)

    known: dict[str, Sequence[KnownQuery]] = {}
    replaced: list[RetrieverSegment] = []
    for segment in segments:
        found = segment.rows.intersection(documents.keys())
        for document_id in segment.known.keys() & found - segment.removed:
            known[document_id] = segment.known[document_id]
        replaced.append(replace(segment, removed=segment.removed | found))
    replaced.append(RetrieverSegment(encoded.retriever, encoded.rows, known=known))
    return replaced
