"""Selection of the best: passages by score, documents by their best passage, vectors by inner
product.

Documents go by descending score, ties by ascending document id, the same for any k and any order of
passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np

from model_code.errors import SettingsError
from model_code.retrieval.protocol import Ranking

SPARE = 16  # documents fetched beyond those wanted, where some are left out
GROUPS = 4  # per row wanted: scores are looked through in so many groups before each is compared
HALF, ONES = np.uint64(32), np.uint64(2**32 - 1)
MANY = 2**14  # scores; of fewer, a partition of keys is faster than looking through groups
# queries; of fewer, one pass of dot products for each is faster than a narrow matrix product
FEW = 12
# float32 scores in memory at a time: 128 MiB, or those of FEW queries, where that is more
SCORES = 2**25


def top_k(
    scores: np.ndarray, document_ids: Sequence[str], k: int, places: np.ndarray | None = None
) -> Ranking:
    """The k best documents among passages with `scores` (n,) that belong to `document_ids` (n).

    places: where in `document_ids` each passage's is (n,); None: in their order.
    The first j entries of the result are the result for k = j, whatever order the passages come in.

    >>> top_k(np.array([.5, .9, .5, 0]), ["b", "c", "a", "d"], k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    if k < 1:
        raise SettingsError(f"k is {k}, but a ranking holds at least 1 document")
    depth = k
    while True:
        rows = best_rows(scores, depth)
        best: dict[str, float] = {}
        chosen = rows if places is None else places[rows]
        for place, score in zip(chosen.tolist(), scores[rows].tolist(), strict=True):
            document = document_ids[place]
            if score > best.get(document, -inf):
                best[document] = score
        if len(best) >= k or len(rows) == len(scores):
            return rank_best_first(best.items(), k)
        depth *= 2  # several passages of one document: more rows hold k documents


def top_k_by_place(
    scores: np.ndarray, document_ids: Sequence[str], k: int, places: np.ndarray, repeated: bool
) -> Ranking:
    """What `top_k` finds among scores above 0 (n,), float32 and none negative, in half of the time.

    document_ids: descending. places: where in them each passage's is (n,), uint64. repeated:
    whether documents have several passages. A key of 64 bits is a score's, which grow with it, and
    then the place: one sort does for both.
    """
    if k < 1:
        raise SettingsError(f"k is {k}, but a ranking holds at least 1 document")
    wanted = k
    while True:
        rows = best_rows(scores, wanted) if len(scores) > MANY else slice(None)
        keys = scores[rows].view(np.uint32).astype(np.uint64) << HALF | places[rows]
        if (others := len(keys) - wanted) > 0:
            keys = np.partition(keys, others)[others:]
        keys.sort()
        best = keys[keys.searchsorted(ONES, side="right") :][::-1]
        scored = len(best)
        if repeated:
            best = best[np.sort(np.unique(best & ONES, return_index=True)[1])]
        if len(best) >= k or scored < wanted:
            break
        wanted *= 2  # as above
    found = (best[:k] >> HALF).astype(np.uint32).view(np.float32).tolist()
    return list(zip(map(document_ids.__getitem__, (best[:k] & ONES).tolist()), found, strict=True))


def rank_best_first(scores: Iterable[tuple[str, float]], k: int | None = None) -> Ranking:
    """The k best of different documents with their scores, equal scores by ascending id; k None:
    all.

    >>> rank_best_first({"b": 0.5, "c": 0.9, "a": 0.5}.items(), k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    # twice, as neither calls a function of Python
    return sorted(sorted(scores), key=itemgetter(1), reverse=True)[:k]


def best_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """The rows of the `count` best of `scores` (n,) and of all that tie with the last of them,
    ascending.

    All rows where so many scores are no numbers that none can be told to be good enough.

    >>> best_rows(np.array([0.5, 0.9, 0.5, 0.2]), count=2).tolist()
    [0, 1, 2]
    """
    if count >= len(scores):
        return np.arange(len(scores))
    floor = _floor(scores, count)
    if np.isnan(floor):
        return np.arange(len(scores))
    rows = np.flatnonzero(scores >= floor)
    candidates = scores[rows]
    return rows[candidates >= _nth_best(candidates, count)]


def search_filtered(
    search: Callable[[Any, int], list[Ranking]],
    queries: Any,
    k: int,
    keep: Callable[[str], bool],
    first: int,
    most: int,
) -> list[Ranking]:
    """The k best documents that `keep` keeps, for each of the queries: `first` are fetched, then
    twice as many, ...

    search: the best documents for queries, as many as asked for. most: documents that hold k of
    those kept, if there are as many. Fewer than k are returned where `search` finds no others; an
    approximate one may although there are.
    """
    first, rankings = min(first, most), []
    for i, ranking in enumerate(search(queries, first)):
        depth = first
        while (
            len(hits := [hit for hit in ranking if keep(hit[0])]) < k
            and len(ranking) == depth < most
        ):
            depth = min(most, 2 * depth)
            ranking = search(queries[i : i + 1], depth)[0]
        rankings.append(hits[:k])
    return rankings


def _floor(scores: np.ndarray, count: int) -> np.floating:
    """A value that the `count` best of `scores` (n,) reach and few others do, found in a fifth of a
    partition's time.

    Of the groups' best scores the `count` best ones are so many scores already. Neighbouring rows
    are often alike, so a group takes rows from everywhere.
    """
    groups = GROUPS * count
    size = len(scores) // groups
    if size < 2:
        return _nth_best(scores, count)
    return _nth_best(scores[: size * groups].reshape(size, groups).max(axis=0), count)


def _nth_best(scores: np.ndarray, n: int) -> np.floating:
    return np.partition(scores, len(scores) - n)[len(scores) - n]


def nearest(
    queries: np.ndarray,
    vectors: Sequence[np.ndarray],
    count: int,
    without: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the `count` among the n rows of all `vectors` (n_i, H) nearest to each of
    `queries` (q, H).

    Both (q, min(count, n)), float32 and int64: by descending score, equal scores by ascending row;
    the rows `without` score -inf. A score's last bits may depend on how many queries are asked at
    once.

    >>> nearest(np.array([[0.0, 1.0]], np.float32), [np.eye(2, dtype=np.float32)], count=2)
    (array([[1., 0.]], dtype=float32), array([[1, 0]]))
    """
    there = sum(map(len, vectors))
    shape = len(queries), min(count, there)
    scores, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    # several are copied side by side
    step = max(FEW, SCORES // (1 if len(vectors) == 1 else 2) // max(1, there))
    for start in range(0, len(queries), step):
        some = queries[start : start + step]
        blocks = [_inner_products(some, block) for block in vectors]
        every = np.concatenate(blocks, axis=1) if len(blocks) > 1 else blocks[0]
        if without is not None:
            every[:, without] = -np.inf
        for i, products in enumerate(every, start):
            best = best_rows(products, count)
            rows[i] = best[np.argsort(-products[best], kind="stable")[: shape[1]]]
            scores[i] = products[rows[i]]
    return scores, rows


def _inner_products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(q, n)."""
    if len(queries) < FEW:
        return np.vecdot(vectors, queries[:, None])
    return queries @ vectors.T
