"""Searching with a query's heaviest tokens, and knowing what that may have missed.

No passage can gain more from the tokens left out than their weights together, so what it scored so far bounds it from
above. The bound of MaxScore: Turtle and Flood (1995), Query evaluation: strategies and optimizations, IP&M 31(6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_code.retriever import Ranking
from model_code.token_index.queries import Query


@dataclass(frozen=True)
class PrunedRanking:
    """A ranking by some of a query's tokens.

    left_out: what a document's score may lack at most.  certain: the whole query would find the same k documents, in
    whatever order.
    """

    ranking: Ranking
    left_out: float
    certain: bool


def judge(ranking: Ranking, k: int, documents: int, left_out: float) -> PrunedRanking:
    """The first k of a `ranking` of k + 1, or of all documents that hold one of the tokens, out of `documents`."""
    first = ranking[:k]
    if not left_out or len(first) == documents:
        certain = True
    elif len(first) < k:
        certain = False  # a document that holds none of the tokens may hold another
    else:
        runner_up = ranking[k][1] if len(ranking) > k else 0.0
        certain = first[-1][1] > above(runner_up + above(left_out))
    return PrunedRanking(first, left_out, certain)


def contenders(partial: np.ndarray, ranking: Ranking, rest: Query) -> np.ndarray:
    """The passages whose `partial` scores (n,) leave them a chance to reach the last of k documents in `ranking`."""
    return np.flatnonzero(partial >= below(ranking[-1][1]) - above(rest.total))


def above(value: float) -> float:
    """A float32 that is not below `value`, however either was rounded."""
    return float(np.nextafter(np.float32(value), np.float32(np.inf)))


def below(value: float) -> float:
    """A float32 that is not above `value`, however either was rounded."""
    return float(np.nextafter(np.float32(value), np.float32(-np.inf)))
