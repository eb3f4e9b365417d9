"""What must hold of a generation before anyone searches it: what was added is found, what was deleted is not.

A fault in vectors, in the list of their documents, or in what is removed, shows as a document that its own vector does
not find. So every document that changed is asked for by its own vector, and some of those that did not.

Only the part that is new is searched, so that a change costs the same however large the base is. That proves the same:
parts rank on their own and are merged by score, so one that is shared ranks its documents as it did before, and what it
loses puts nothing above another. By Cauchy and Schwarz it puts a document above one of another part, asked for by its
own vector, only by a vector that is at least as long, which is no fault. Counting shows that it loses nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.live.part import PartView
from model_code.live.searcher import Searcher
from model_code.live.writer import Applied
from model_code.retriever import Ranking

SAMPLE = 20  # older documents
REFUSED = "the new generation is refused"
CLEARLY = 1e-3  # a score that is smaller by this share is so, and not by rounding
ROUNDING = 1e-6  # a norm or a score that is larger by this share is so, and not by rounding


def everything_is_found(searcher: Searcher, applied: Applied, sample: int = SAMPLE, seed: int = 0) -> None:
    """Refuse a generation in which a changed document, or one of a sample of the others, is not found as it should.

    sample: so many others, drawn by the seed and the generation's number. A document counts as found if nothing ranks
    above it for the first of its own vectors but equal ones and longer ones, whose inner product may be larger. Kinds
    that search by words are asked for the document alone. FreshetError names the first that fails.
    """
    changed = [*applied.added, *applied.updated]
    owners = {one: [view for view in searcher.views if one in view] for one in (*applied.deleted, *changed)}
    _refuse([one for one in applied.deleted if owners[one]], "deleted, but still there")
    _refuse([one for one in changed if not owners[one]], "added, but in no part")
    _refuse([one for one in changed if len(owners[one]) > 1], "in two parts")
    found, more = sum(view.documents for view in searcher.views), len(applied.added) - len(applied.deleted)
    if found != applied.before + more:
        raise FreshetError(f"{REFUSED}: it holds {found:,} documents in place of {applied.before:,} and {more:+,}")
    if searcher.base.retriever.dense is None:
        _by_words(searcher, changed)
        return
    older = _sample(searcher.views, {*changed}, sample, [seed, applied.generation.number])
    missed = _missed(searcher, {one: owners[one][0] for one in changed} | older)
    _refuse([one for one in missed if one not in older], "not found by its own vector")
    _refuse(missed, "older, and no longer found by its own vector")


def _missed(searcher: Searcher, owners: Mapping[str, PartView]) -> list[str]:
    """Those documents that their own vector does not find before what is new; FreshetError for vectors that are no
    numbers. owners: the part that has each document.
    """
    new = [view for view in searcher.views if view.part.number == searcher.generation.number]
    if not owners or not new:
        return []
    vectors = own_vectors(owners)
    _refuse([one for one, vector in vectors.items() if not np.isfinite(vector).all()], "not finite")
    _refuse([one for one, vector in vectors.items() if owners[one] in new and not vector.any()], "of an empty vector")
    rankings = new[0].part.dense.search_encoded(np.stack(list(vectors.values())), 1)
    return [
        one for (one, vector), ranking in zip(vectors.items(), rankings, strict=True)
        if not _is_found(searcher, one, vector, ranking, owners[one], alone=owners[one] not in new)
    ]  # fmt: skip


def own_vectors(owners: Mapping[str, PartView]) -> dict[str, np.ndarray]:
    """The first vector (H,) of each document, in their order; owners: the dense part that has it."""
    vectors: dict[str, np.ndarray] = {}
    for view in dict.fromkeys(owners.values()):
        index = view.part.dense.index
        ids, rows = index.document_ids, index.ids.rows_of([one for one, owner in owners.items() if owner is view])
        vectors |= {ids[row]: index.vectors[row] for row in reversed(rows.tolist())}  # so that its first one stays
    return {one: vectors[one] for one in owners}


def _is_found(searcher: Searcher, one: str, query: np.ndarray, ranking: Ranking, owner: PartView, alone: bool) -> bool:
    """Whether the document leads the ranking of its own vector, or what does may well lead: by an equal score, or by a
    longer vector, as |q| |d| bounds the inner product of a query with a document (Cauchy and Schwarz).

    Scores of a document and its copy are equal but for rounding: processors round an encoding by what else is in its
    batch, so that the copy may come out a little ahead.

    alone: the document's own part was not searched, so that it only has its score. An approximate index may miss any.
    """
    if not ranking or ranking[0][0] == one:
        return bool(ranking) or alone
    winner, best = ranking[0]
    square = float(query.astype(np.float64) @ query)  # its own score, but for rounding
    if alone and best < square - CLEARLY * abs(square):
        return True
    own = float(owner.part.dense.scores_encoded(query[None], [[one]])[0][0])
    if own > best:
        return alone or owner.part.dense.index.approximate is not None
    index = searcher.view_of(winner).part.dense.index
    longest = max(float(np.linalg.norm(index.vectors[row])) for row in index.ids.rows_of([winner]))
    return best - own <= ROUNDING * abs(best) or longest > float(np.linalg.norm(query)) * (1 + ROUNDING)


def _by_words(searcher: Searcher, changed: Sequence[str]) -> None:
    for one in changed:
        query: Any = searcher.retriever.encode_queries([one])
        score = searcher.retriever.scores_encoded(query, [[one]])[0][0]
        _refuse([] if np.isfinite(score) else [one], "without a score")


def _sample(views: Sequence[PartView], but: set[str], number: int, seed: list[int]) -> dict[str, PartView]:
    """At most `number` documents that can be found, others than `but`, ascending, with the part that has each."""
    rows = [view.part.rows.document_ids for view in views]
    sizes, drawn = np.cumsum([len(ids) for ids in rows]), {}
    for row in np.random.default_rng(seed).integers(0, sizes[-1], number).tolist():
        part = int(np.searchsorted(sizes, row, side="right"))
        one = rows[part][row - sizes[part]]
        if one not in views[part].removed and one not in but:
            drawn[one] = views[part]
    return dict(sorted(drawn.items()))


def _refuse(document_ids: Sequence[str], what: str) -> None:
    if document_ids:
        more = f" ({len(document_ids)} such in all)" if len(document_ids) > 1 else ""
        raise FreshetError(f"{REFUSED}: document {document_ids[0]!r} is {what}{more}")
