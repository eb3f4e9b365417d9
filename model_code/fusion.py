"""Reciprocal-rank fusion: one ranking from several, by ranks alone, so that scores of any scale go together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from model_code.retriever import Ranking


def reciprocal_rank_fusion(rankings: Iterable[Ranking], k: int, constant: int = 60) -> Ranking:
    """The k best documents by RRF(d) = sum over rankings of 1 / (constant + rank of d) (Cormack et al. 2009, eq. 1).

    Ranks count from 1, and a ranking without d adds nothing. Ties go to the smaller document id.

    >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5), ("c", 0.4)]], k=2)
    [('b', 0.0325), ('a', 0.0164)]
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (document, _) in enumerate(ranking, start=1):
            scores[document] += 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
