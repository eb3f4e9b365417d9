"""The one top-k routine: documents by descending score, ties by ascending document id, the same for any k.

A document may have several passages; it is ranked by its best one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model_code.retriever import Ranking
from model_code.settings import require

SPARE = 16  # documents fetched beyond those wanted, where some are left out
GROUPS = 4  # per row wanted: scores are looked through in so many groups before each is compared


def top_k(scores: np.ndarray, document_ids: Sequence[str] | np.ndarray, k: int) -> Ranking:
    """The k best documents among passages with `scores` (n,) that belong to `document_ids` (n).

    The first j entries of the result are the result for k = j, whatever order the passages come in.

    >>> top_k(np.array([.5, .9, .5, .2]), ["b", "c", "a", "c"], k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    require(k >= 1, f"k is {k}, but a ranking holds at least 1 document")
    wanted = k
    while True:
        rows = best_rows(scores, wanted)
        ranking = _rank(scores, document_ids, rows)
        if len(ranking) >= k or len(rows) == len(scores):
            return ranking[:k]
        wanted *= 2  # several passages of one document: more rows hold k documents


def best_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """The rows of the `count` best of `scores` (n,) and of all that tie with the last of them, ascending.

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
    kept = scores[rows]
    return rows[kept >= _nth_best(kept, count)]


def search_kept(
    search: Callable[[Any, int], list[Ranking]],
    queries: Any,
    k: int,
    keep: Callable[[str], bool],
    first: int,
    most: int,
) -> list[Ranking]:
    """The k best documents that `keep` keeps, for each of the queries: `first` are fetched, then twice as many, ...

    search: the best documents for queries, as many as asked for. most: documents that hold k of those kept, if there
    are as many. Fewer than k are returned where `search`
    finds no others; an approximate one may although there are.
    """
    first, rankings = min(first, most), []
    for i, ranking in enumerate(search(queries, first)):
        wanted = first
        while len(left := [hit for hit in ranking if keep(hit[0])]) < k and len(ranking) == wanted < most:
            wanted = min(most, 2 * wanted)
            ranking = search(queries[i : i + 1], wanted)[0]
        rankings.append(left[:k])
    return rankings


def _floor(scores: np.ndarray, count: int) -> np.floating:
    """A value that the `count` best of `scores` (n,) reach and few others do, found in a fifth of a partition's time.

    Of the groups' best scores the `count` best ones are so many scores already. Neighbouring rows are often alike, so a
    group takes rows from everywhere.
    """
    groups = GROUPS * count
    size = len(scores) // groups
    if size < 2:
        return _nth_best(scores, count)
    return _nth_best(scores[: size * groups].reshape(size, groups).max(axis=0), count)


def _nth_best(scores: np.ndarray, n: int) -> np.floating:
    return np.partition(scores, len(scores) - n)[len(scores) - n]


def _rank(scores: np.ndarray, document_ids: Sequence[str] | np.ndarray, rows: np.ndarray) -> Ranking:
    best: dict[str, float] = {}
    for row, score in zip(rows.tolist(), scores[rows].tolist(), strict=True):
        document = document_ids[row]
        if score > best.get(document, -np.inf):
            best[document] = score
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))
