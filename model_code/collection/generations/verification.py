"""Verify that a new generation finds its documents, before it becomes current.

A fault in vectors, in the list of their documents, or in the list of removed documents shows as a
document that is not found by its own vector. So each changed document, and a sample of the others,
is searched by its own vector.

Only the new segment is searched, so that a change costs the same however large the base is. This
proves as much as searching all segments. Each segment ranks its documents independently, and the
rankings are merged by score. So a shared segment ranks its documents as before. By the
Cauchy-Schwarz inequality, a document of a shared segment outranks a document of another segment for
that document's own vector only if its vector is at least as long, which is no fault. The number of
documents shows that nothing else was lost. Searches look through all segments at once; that this
gives the same rankings is tested bit by bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from model_code.collection.generations.generation_builder import ApplyResult
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.segment import SegmentView
from model_code.errors import FreshetError
from model_code.retrieval.protocol import Ranking

# Number of unchanged documents that are verified.
SAMPLED_DOCUMENTS = 20

# A score that is smaller by this share is smaller by more than rounding.
SCORE_TOLERANCE = 1e-3

# Norms and scores whose difference is below this share count as equal.
ROUNDING_TOLERANCE = 1e-6

MESSAGE_PREFIX = "the new generation is refused"


def verify_searchable(
    searcher: Searcher, applied: ApplyResult, sample: int = SAMPLED_DOCUMENTS, seed: int = 0
) -> None:
    """Raise an error if a document of a new generation is not found as it should be.

    A document counts as found if no document ranks above it for its own first vector, except for
    documents with an equal score or a longer vector. Retrievers that search by words only have to
    give each changed document a finite score.

    Args:
        searcher: Searcher of the new generation.
        applied: Changes that were applied.
        sample: Number of unchanged documents to verify as well.
        seed: Seed of the sample, which also depends on the generation's number.

    Raises:
        FreshetError: If a document is missing, duplicated, not deleted, or not found; the message
            names the first one.
    """
    changed = [*applied.added, *applied.updated, *applied.solved_again]
    owners: dict[str, list[SegmentView]] = {}
    for document_id in (*applied.deleted, *changed):
        owners[document_id] = [view for view in searcher.views if document_id in view]

    _refuse([key for key in applied.deleted if owners[key]], "deleted, but still there")
    _refuse([key for key in changed if not owners[key]], "added, but in no part")
    _refuse([key for key in changed if len(owners[key]) > 1], "in two parts")
    _verify_document_count(searcher, applied)
    if searcher.base.retriever.dense is None:
        _verify_word_scores(searcher, changed)
        return

    unchanged = _sample_documents(
        searcher.views, set(changed), sample, [seed, applied.generation.number]
    )
    verified = {document_id: owners[document_id][0] for document_id in changed}
    verified.update(unchanged)
    missed = _missed_documents(searcher, verified)
    _refuse([key for key in missed if key not in unchanged], "not found by its own vector")
    _refuse(missed, "older, and no longer found by its own vector")


def _verify_document_count(searcher: Searcher, applied: ApplyResult) -> None:
    total = sum(view.documents for view in searcher.views)
    difference = len(applied.added) - len(applied.deleted)
    if total != applied.before + difference:
        raise FreshetError(
            f"{MESSAGE_PREFIX}: it holds {total:,} documents in place of {applied.before:,} "
            f"and {difference:+,}"
        )


def _missed_documents(searcher: Searcher, owners: Mapping[str, SegmentView]) -> list[str]:
    """Return the documents that a search of the new segment by their own vector misses.

    Args:
        searcher: Searcher of the new generation.
        owners: Segment of each document to verify.

    Raises:
        FreshetError: If a vector is not finite, or a new vector is zero.
    """
    new_segments = [
        view for view in searcher.views if view.segment.number == searcher.generation.number
    ]
    if not owners or not new_segments:
        return []

    vectors = first_vectors(owners)
    not_finite: list[str] = []
    empty: list[str] = []
    for document_id, vector in vectors.items():
        if not np.isfinite(vector).all():
            not_finite.append(document_id)
        if owners[document_id] in new_segments and not vector.any():
            empty.append(document_id)
    _refuse(not_finite, "not finite")
    _refuse(empty, "of an empty vector")

    queries = np.stack(list(vectors.values()))
    rankings = new_segments[0].segment.dense.search_encoded(queries, 1)
    missed: list[str] = []
    for (document_id, vector), ranking in zip(vectors.items(), rankings, strict=True):
        owner = owners[document_id]
        in_searched_segment = owner in new_segments
        if not _is_found(searcher, document_id, vector, ranking, owner, in_searched_segment):
            missed.append(document_id)
    return missed


def first_vectors(owners: Mapping[str, SegmentView]) -> dict[str, np.ndarray]:
    """Return the first vector (H,) of each document, in the order of `owners`.

    Args:
        owners: Dense segment that holds each document.
    """
    vectors: dict[str, np.ndarray] = {}
    for view in dict.fromkeys(owners.values()):
        index = view.segment.dense.index
        document_ids = [document_id for document_id, owner in owners.items() if owner is view]
        # The rows are read backwards, so that the first row of each document is written last.
        for row in reversed(index.ids.rows_of(document_ids).tolist()):
            vectors[index.ids.document_ids[row]] = index.vectors[row]
    return {document_id: vectors[document_id] for document_id in owners}


def _is_found(
    searcher: Searcher,
    document_id: str,
    query: np.ndarray,
    ranking: Ranking,
    owner: SegmentView,
    in_searched_segment: bool,
) -> bool:
    """Return whether a search by a document's own vector finds it well enough.

    It does if the document is ranked first, or if the document ranked first has an equal score or a
    longer vector: |q| |d| bounds the inner product of a query with a document (Cauchy-Schwarz).

    The scores of a document and its copy are equal except for rounding. An encoding is rounded by
    what else is in its batch, so that the copy may come out a little ahead.

    Args:
        searcher: Searcher of the new generation.
        document_id: Document to find.
        query: Own vector (H,) of the document.
        ranking: Best document of the searched segment.
        owner: Segment that holds the document.
        in_searched_segment: Whether the searched segment holds the document. If not, the document
            is found if its own score is above the ranking.
    """
    if not ranking:
        return not in_searched_segment
    winner, best_score = ranking[0]
    if winner == document_id:
        return True

    # The document's own score, except for rounding. Most documents are decided by this alone.
    squared_norm = float(query.astype(np.float64) @ query)
    if not in_searched_segment and best_score < squared_norm - SCORE_TOLERANCE * abs(squared_norm):
        return True

    dense = owner.segment.dense
    score = float(dense.score_encoded(query[None], [[document_id]])[0][0])
    if score > best_score:
        # An exact search of its own segment would have ranked it first; an approximate one may
        # miss any document.
        return not in_searched_segment or dense.index.approximate is not None
    if best_score - score <= ROUNDING_TOLERANCE * abs(best_score):
        return True

    winner_index = searcher.view_of(winner).segment.dense.index
    winner_rows = winner_index.ids.rows_of([winner])
    longest = max(float(np.linalg.norm(winner_index.vectors[row])) for row in winner_rows)
    return longest > float(np.linalg.norm(query)) * (1 + ROUNDING_TOLERANCE)


def _verify_word_scores(searcher: Searcher, changed: Sequence[str]) -> None:
    """Require a finite score of each changed document, for a retriever that searches by words."""
    for document_id in changed:
        query: Any = searcher.retriever.encode_queries([document_id])
        score = searcher.retriever.score_encoded(query, [[document_id]])[0][0]
        if not np.isfinite(score):
            _refuse([document_id], "without a score")


def _sample_documents(
    views: Sequence[SegmentView], excluded: Collection[str], number: int, seed: list[int]
) -> dict[str, SegmentView]:
    """Draw up to `number` documents that can be found, with their segments, by ascending id.

    Rows are drawn, so that documents with many passages are drawn more often.
    """
    row_documents = [view.segment.rows.document_ids for view in views]
    row_ends = np.cumsum([len(documents) for documents in row_documents])
    drawn: dict[str, SegmentView] = {}
    rows = np.random.default_rng(seed).integers(0, row_ends[-1], number)
    for row in rows.tolist():
        position = int(np.searchsorted(row_ends, row, side="right"))
        # Rows are counted from the end of the segment, hence the negative index.
        document_id = row_documents[position][row - row_ends[position]]
        if document_id not in views[position].removed and document_id not in excluded:
            drawn[document_id] = views[position]
    return dict(sorted(drawn.items()))


def _refuse(document_ids: Sequence[str], fault: str) -> None:
    """Raise an error that names the first of the documents, if there are any."""
    if not document_ids:
        return
    message = f"{MESSAGE_PREFIX}: document {document_ids[0]!r} is {fault}"
    if len(document_ids) > 1:
        message += f" ({len(document_ids)} such in all)"
    raise FreshetError(message)
