"""Find out whether a hit was shown only because of known queries.

A thumb on such a hit must not count. Otherwise a known query would increase its own weight, or make
similar queries known.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakKeyDictionary

from model_code.collection.generations.evaluation_segments import with_encodings
from model_code.collection.generations.generation import verify_checksums_on_error
from model_code.collection.generations.searcher import Searcher
from model_code.retrieval.protocol import Ranking

SHOWN_HITS = 10
"""Number of hits that a user is assumed to see on a page."""

MAX_FEEDBACK_RANK = 100
"""Largest depth of the search that checks whether a hit is only due to known queries."""

MAX_CACHED_ANSWERS = 1000
"""Largest number of answers that are kept for a searcher."""

_answers: WeakKeyDictionary[Searcher, dict[tuple[str, str], bool]] = WeakKeyDictionary()
"""Answers of `is_raised_by_known_queries` by searcher, then by query and document id."""


def is_raised_by_known_queries(searcher: Searcher, text: str, document_id: str) -> bool:
    """Return whether a hit was shown only because of known queries of documents.

    This is the case if the live search finds the document among the first hits, and a search
    without what known queries change does not. In the second search, BM25 ignores the words of
    known queries. If the vector of the document was solved, for this query or any others, its
    encoding replaces it. Both are done at once, because a query that earned the document changes
    both.

    The first hits end with the document, and are at least `SHOWN_HITS`. If the live search does not
    find the document among `MAX_FEEDBACK_RANK` hits, then known queries did not raise it. It was
    shown for another reason, such as a filter.

    Answers are kept, so that a client that sends the same opinion again costs no further search.

    Args:
        searcher: Searcher of the generation that showed the hit.
        text: Text of the query.
        document_id: Id of the document that the hit showed.
    """
    answers = _answers.setdefault(searcher, {})
    key = (text, document_id)
    answer = answers.get(key)
    if answer is None:
        answer = _is_raised(searcher, text, document_id)
        if len(answers) >= MAX_CACHED_ANSWERS:
            answers.clear()
        answers[key] = answer
    return answer


def _is_raised(searcher: Searcher, text: str, document_id: str) -> bool:
    """Compute the answer of `is_raised_by_known_queries`."""
    is_solved = _is_solved(searcher, document_id)
    ignores_known_words = searcher.plain_retriever is not searcher.retriever
    if not is_solved and not ignores_known_words:
        return False

    (ranking,) = searcher.retriever.search([text], MAX_FEEDBACK_RANK)
    found_ids = [found_id for found_id, _ in ranking]
    if document_id not in found_ids:
        return False
    depth = max(found_ids.index(document_id) + 1, SHOWN_HITS)

    if is_solved:
        ranking = _search_by_encoding(searcher, text, document_id, depth)
    else:
        (ranking,) = searcher.plain_retriever.search([text], depth)
    return document_id not in dict(ranking)


def _is_solved(searcher: Searcher, document_id: str) -> bool:
    """Return whether IncDSI solved the vector of a live document."""
    with verify_checksums_on_error(searcher.generation):
        view = searcher.find_view(document_id)
        return view is not None and document_id in view.segment.solved_ids


def _search_by_encoding(searcher: Searcher, text: str, document_id: str, depth: int) -> Ranking:
    """Search by the encoding of a solved document, and without words of known queries.

    Args:
        searcher: Searcher of the generation.
        text: Text of the query.
        document_id: Id of the document, whose text is encoded again.
        depth: Number of documents to return.
    """
    segments = [view.searchable for view in searcher.views]
    with verify_checksums_on_error(searcher.generation), TemporaryDirectory() as folder:
        encoded = with_encodings(searcher, segments, [document_id], Path(folder))
        retriever = type(searcher.base.retriever).join_segments(encoded)
        (ranking,) = retriever.without_known_words().search([text], depth)
    return ranking
