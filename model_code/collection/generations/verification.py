"""Verify that a new generation finds its documents, before it becomes current.

If vectors, the list of their documents, or the list of removed documents is wrong, some document is
not found by its own vector. So each changed document, and a sample of the others, is searched with
its own vector as the query.

Only the new segment is searched. So the time does not depend on the size of the collection. This
proves as much as a search of all segments, for these reasons:

- Each segment ranks its documents independently, and rankings are merged by score. Segments that
  the new generation shares with older ones therefore rank their documents as before.
- Let the query be the vector of a document. By the Cauchy-Schwarz inequality, a document of another
  segment ranks higher only if its vector is at least as long. That is not a fault.
- The number of documents shows that no document was lost.

Real searches search all segments at once. Tests show that this gives the same rankings, bit by bit.
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

# Number of unchanged documents that are verified in addition to the changed documents.
SAMPLED_DOCUMENTS = 20

# Scores that differ by more than this share differ by more than rounding.
SCORE_TOLERANCE = 1e-3

# Norms and scores that differ by at most this share count as equal.
ROUNDING_TOLERANCE = 1e-6

MESSAGE_PREFIX = "the new generation is refused"


def verify_searchable(
    searcher: Searcher, applied: ApplyResult, sample: int = SAMPLED_DOCUMENTS, seed: int = 0
) -> None:
    """Raise an error if a new generation does not find a document as it should.

    A generation is a snapshot of the index, which consists of segments. It is checked before
    searches use it. A document counts as found if it is first in a search with its own first
    vector. Documents with an equal score or a longer vector may rank above it. A retriever without
    vectors only has to give each changed document a finite score.

    Args:
        searcher: Searcher of the new generation.
        applied: Changes that were applied.
        sample: Number of unchanged documents to verify.
        seed: Seed of the sample. The sample also depends on the number of the generation.

    Raises:
        FreshetError: If a document is missing, is in two segments, is not deleted, or is not found.
            The message names the first such document.
    """
    changed = [*applied.added, *applied.updated, *applied.solved_again]
    # The segments that hold each changed or deleted document.
    owners: dict[str, list[SegmentView]] = {}
    for document_id in (*applied.deleted, *changed):
        owners[document_id] = [view for view in searcher.views if document_id in view]

    not_deleted = [document_id for document_id in applied.deleted if owners[document_id]]
    not_added = [document_id for document_id in changed if not owners[document_id]]
    doubled = [document_id for document_id in changed if len(owners[document_id]) > 1]
    _refuse(not_deleted, "deleted, but still there")
    _refuse(not_added, "added, but in no part")
    _refuse(doubled, "in two parts")
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
    missed_changes = [document_id for document_id in missed if document_id not in unchanged]
    _refuse(missed_changes, "not found by its own vector")
    _refuse(missed, "older, and no longer found by its own vector")


def _verify_document_count(searcher: Searcher, applied: ApplyResult) -> None:
    """Raise an error unless the number of documents fits the additions and deletions."""
    total = sum(view.documents for view in searcher.views)
    difference = len(applied.added) - len(applied.deleted)
    if total != applied.before + difference:
        raise FreshetError(
            f"{MESSAGE_PREFIX}: it holds {total:,} documents in place of {applied.before:,} "
            f"and {difference:+,}"
        )


def _missed_documents(searcher: Searcher, owners: Mapping[str, SegmentView]) -> list[str]:
    """Return the ids of the documents that are not found by their own vectors.

    Args:
        searcher: Searcher of the new generation.
        owners: Segment of each document to verify, by document id.

    Raises:
        FreshetError: If a vector is not finite, or a new vector is zero.
    """
    new_segment = None
    for view in searcher.views:
        if view.segment.number == searcher.generation.number:
            new_segment = view
    if not owners or new_segment is None:
        return []

    vectors = first_vectors(owners)
    not_finite: list[str] = []
    empty: list[str] = []
    for document_id, vector in vectors.items():
        if not np.isfinite(vector).all():
            not_finite.append(document_id)
        if owners[document_id] is new_segment and not vector.any():
            empty.append(document_id)
    _refuse(not_finite, "not finite")
    _refuse(empty, "of an empty vector")

    queries = np.stack(list(vectors.values()))
    rankings = new_segment.segment.dense.search_encoded(queries, 1)
    missed: list[str] = []
    for (document_id, vector), ranking in zip(vectors.items(), rankings, strict=True):
        owner = owners[document_id]
        in_searched_segment = owner is new_segment
        if not _is_found(searcher, document_id, vector, ranking, owner, in_searched_segment):
            missed.append(document_id)
    return missed


def first_vectors(owners: Mapping[str, SegmentView]) -> dict[str, np.ndarray]:
    """Return the first vector (H,) of each document, in the order of `owners`.

    A document has one vector for each of its passages.

    Args:
        owners: Segment that holds each document, by document id. Its retriever must be dense.
    """
    vectors: dict[str, np.ndarray] = {}
    for view in dict.fromkeys(owners.values()):
        index = view.segment.dense.index
        document_ids = [document_id for document_id, owner in owners.items() if owner is view]
        # Rows are read backwards. So the first row of a document overwrites its other rows.
        for row in reversed(index.ids.rows_of(document_ids).tolist()):
            document_id = index.ids.document_ids[row]
            vectors[document_id] = index.vectors[row]
    return {document_id: vectors[document_id] for document_id in owners}


def _is_found(
    searcher: Searcher,
    document_id: str,
    query: np.ndarray,
    ranking: Ranking,
    owner: SegmentView,
    in_searched_segment: bool,
) -> bool:
    """Return whether a search with the vector of a document finds the document.

    The document is found if it is first in the ranking. It is also found if the first document has
    an equal score or a longer vector. A longer vector can have a larger inner product with the
    query, because |q| |d| bounds the inner product (Cauchy-Schwarz).

    Scores count as equal up to rounding. The vectors of equal texts from two batches differ in
    their last bits. So a copy of the document can have a slightly higher score.

    Args:
        searcher: Searcher of the new generation.
        document_id: Id of the document to find.
        query: Vector (H,) of the document, which is the query.
        ranking: Best document of the searched segment, with its score.
        owner: Segment that holds the document.
        in_searched_segment: Whether `owner` is the searched segment. If it is not, the document
            is found if its own score is higher than the score in `ranking`.
    """
    if not ranking:
        return not in_searched_segment
    winner, best_score = ranking[0]
    if winner == document_id:
        return True

    # The squared norm is the document's score for its own vector, up to rounding. It decides most
    # cases without a search.
    squared_norm = float(query.astype(np.float64) @ query)
    lowest_own_score = squared_norm * (1 - SCORE_TOLERANCE)
    if not in_searched_segment and best_score < lowest_own_score:
        return True

    dense = owner.segment.dense
    score = float(dense.score_encoded(query[None], [[document_id]])[0][0])
    if score > best_score:
        # The document has the highest score but is not first. In an exact search of its own segment
        # that is a fault. An approximate search may miss any document.
        return not in_searched_segment or dense.index.approximate is not None
    if best_score - score <= ROUNDING_TOLERANCE * abs(best_score):
        return True

    winner_index = searcher.view_of(winner).segment.dense.index
    winner_rows = winner_index.ids.rows_of([winner])
    winner_norm = max(float(np.linalg.norm(winner_index.vectors[row])) for row in winner_rows)
    query_norm = float(np.linalg.norm(query))
    return winner_norm > query_norm * (1 + ROUNDING_TOLERANCE)


def _verify_word_scores(searcher: Searcher, changed: Sequence[str]) -> None:
    """Raise an error unless each changed document gets a finite score.

    This is the check of a retriever without vectors, such as BM25.
    """
    for document_id in changed:
        query: Any = searcher.retriever.encode_queries([document_id])
        score = searcher.retriever.score_encoded(query, [[document_id]])[0][0]
        if not np.isfinite(score):
            _refuse([document_id], "without a score")


def _sample_documents(
    views: Sequence[SegmentView], excluded: Collection[str], number: int, seed: list[int]
) -> dict[str, SegmentView]:
    """Draw live documents at random, by drawing `number` passages.

    A document with many passages is more likely to be drawn, and it may be drawn several times. So
    there may be fewer documents than passages.

    Args:
        views: Segments of the generation.
        excluded: Ids of documents that are left out of the sample.
        number: Number of passages to draw.
        seed: Seed of the random generator.

    Returns:
        The segment of each drawn document, by document id, in ascending order of the ids.
    """
    # The passages of all segments are numbered one after the other.
    sizes = np.array([len(view.segment.rows) for view in views])
    ends = np.cumsum(sizes)
    starts = ends - sizes
    passages = np.random.default_rng(seed).integers(0, ends[-1], number)

    drawn: dict[str, SegmentView] = {}
    for passage in passages.tolist():
        # The segment of a passage is the first one that ends after it.
        position = int(np.searchsorted(ends, passage, side="right"))
        view = views[position]
        document_id = view.segment.rows.document_ids[passage - starts[position]]
        if document_id not in view.removed and document_id not in excluded:
            drawn[document_id] = view
    return dict(sorted(drawn.items()))


def _refuse(document_ids: Sequence[str], fault: str) -> None:
    """Raise an error if there are faulty documents. The message names the first one.

    Args:
        document_ids: Ids of the faulty documents.
        fault: Description of the fault, which follows "document ID is" in the message.
    """
    if not document_ids:
        return
    message = f"{MESSAGE_PREFIX}: document {document_ids[0]!r} is {fault}"
    if len(document_ids) > 1:
        message += f" ({len(document_ids)} such in all)"
    raise FreshetError(message)
