"""The one top-k routine: documents by descending score, ties by ascending document id, the same for any k.

A document may have several passages; it is ranked by its best one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.settings import require

Ranking = list[tuple[str, float]]
"""Document ids and scores, best first."""


def top_k(scores: np.ndarray, document_ids: Sequence[str] | np.ndarray, k: int) -> Ranking:
    """The k best documents among passages with `scores` (n,) that belong to `document_ids` (n).

    The first j entries of the result are the result for k = j, whatever order the passages come in.

    >>> top_k(np.array([.5, .9, .5, .2]), ["b", "c", "a", "c"], k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    require(k >= 1, f"k is {k}, but a ranking holds at least 1 document")
    wanted = k
    while True:
        rows = _best_rows(scores, wanted)
        ranking = _rank(scores, document_ids, rows)
        if len(ranking) >= k or len(rows) == len(scores):
            return ranking[:k]
        wanted *= 2  # several passages of one document: more rows hold k documents


def _best_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """The rows of the `count` best scores and of all that tie with the last of them."""
    if count >= len(scores):
        return np.arange(len(scores))
    last = np.partition(scores, len(scores) - count)[len(scores) - count]
    return np.flatnonzero(scores >= last)


def _rank(scores: np.ndarray, document_ids: Sequence[str] | np.ndarray, rows: np.ndarray) -> Ranking:
    best: dict[str, float] = {}
    for row, score in zip(rows.tolist(), scores[rows].tolist(), strict=True):
        document = document_ids[row]
        if score > best.get(document, -np.inf):
            best[document] = score
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))
