"""What must hold of a generation before anyone searches it: what was added is found, what was deleted is not.

A fault in vectors, in the list of their documents, or in what is removed, shows as a document that its own vector does
not find. So every document that changed is asked for by its own vector, and some of those that did not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.live.part import View
from model_code.live.searcher import Searcher
from model_code.live.segmented import SegmentedRetriever
from model_code.live.writer import Applied
from model_code.retrievers.dense import DenseRetriever

SAMPLE = 20  # older documents
LONGER = 1e-6  # a norm that is larger by this share is so, and not by rounding


def everything_is_found(searcher: Searcher, applied: Applied, sample: int = SAMPLE, seed: int = 0) -> None:
    """Refuse a generation in which a changed document, or one of a sample of the others, is not found as it should.

    sample: so many others, drawn by the seed and the generation's number. A document counts as found if nothing ranks
    above it for the first of its own vectors but equal ones and longer ones, whose inner product may be larger. Kinds
    that search by words are asked for the document alone. FreshetError names the first that fails.
    """
    _refuse([one for one in applied.deleted if any(one in view for view in searcher.views)], "deleted, but still there")
    changed = [*applied.added, *applied.updated]
    lost = [one for one in changed if not any(one in view for view in searcher.views)]
    _refuse(lost, "added, but in no part")
    older = _sample(searcher.views, {*changed}, sample, [seed, applied.generation.number])
    if isinstance(searcher.base.retriever, DenseRetriever):
        _refuse(_missed(searcher.retriever, changed), "not found by its own vector")
        _refuse(_missed(_without_unchanged(searcher, older), older), "older, and no longer found by its own vector")
    else:
        _by_words(searcher, changed)


def _without_unchanged(searcher: Searcher, document_ids: Sequence[str]) -> SegmentedRetriever:
    """What could have come between documents and their searches: their own parts, and the one that is new."""
    holding = {searcher.retriever.view_of(one) for one in document_ids}
    return SegmentedRetriever([view for view in searcher.views if view in holding or view is searcher.views[-1]])


def _missed(retriever: SegmentedRetriever, document_ids: Sequence[str]) -> list[str]:
    """Those that their own vector does not find; FreshetError for vectors that are no numbers."""
    if not document_ids:
        return []
    queries = np.stack([own_vector(retriever.view_of(one), one) for one in document_ids])
    finite = np.isfinite(queries).all(axis=1)
    _refuse([one for one, sound in zip(document_ids, finite, strict=True) if not sound], "not finite")
    rankings = retriever.search_encoded(queries, 1)
    return [
        one for one, query, ranking in zip(document_ids, queries, rankings, strict=True)
        if not ranking or (ranking[0][0] != one and not _outdone(retriever, one, query, *ranking[0]))
    ]  # fmt: skip


def own_vector(view: View, document_id: str) -> np.ndarray:
    """The first vector (H,) of a document of a dense part."""
    index = view.part.retriever.index
    return index.vectors[index.ids.rows_of([document_id])[0]]


def _outdone(retriever: SegmentedRetriever, document_id: str, query: np.ndarray, winner: str, best: float) -> bool:
    """Whether the winner may well rank above the document: by an equal score, or by a longer vector, as |q| |d| bounds
    the inner product of a query with a document (Cauchy and Schwarz). An approximate index may miss any document.
    """
    own, holds = retriever.rerank_encoded(query[None], [[document_id]])[0][0][1], retriever.view_of
    if own > best:
        return holds(document_id).part.retriever.index.approximate is not None
    index = holds(winner).part.retriever.index
    longest = max(float(np.linalg.norm(index.vectors[row])) for row in index.ids.rows_of([winner]))
    return own == best or longest > float(np.linalg.norm(query)) * (1 + LONGER)


def _by_words(searcher: Searcher, changed: Sequence[str]) -> None:
    for one in changed:
        query: Any = searcher.retriever.encode_queries([one])
        score = searcher.retriever.rerank_encoded(query, [[one]])[0][0][1]
        _refuse([] if np.isfinite(score) else [one], "without a score")


def _sample(views: Sequence[View], but: set[str], number: int, seed: list[int]) -> list[str]:
    """At most `number` documents that can be found, others than `but`, ascending."""
    return sorted(set(_drawn(views, but, number, np.random.default_rng(seed))))


def _drawn(views: Sequence[View], but: set[str], number: int, chance: np.random.Generator) -> Iterator[str]:
    sizes = np.cumsum([len(view.part.rows) for view in views])
    for row in chance.integers(0, sizes[-1], number).tolist():
        part = int(np.searchsorted(sizes, row, side="right"))
        one = views[part].part.rows.document_ids[row - sizes[part]]
        if one in views[part] and one not in but:
            yield one


def _refuse(document_ids: Sequence[str], what: str) -> None:
    if document_ids:
        more = f" ({len(document_ids)} such in all)" if len(document_ids) > 1 else ""
        raise FreshetError(f"the new generation is refused: document {document_ids[0]!r} is {what}{more}")
