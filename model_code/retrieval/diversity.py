"""Maximal marginal relevance: a ranking without repetitions among its first documents.

The next document is the one with the highest

    (1 - diversity) * relevance - diversity * (greatest similarity to a document before it),

where relevance is the score, scaled to 0 to 1 over the candidates (Carbonell and Goldstein, 1998,
The Use of MMR).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.retrieval.protocol import Ranking

MIN_SCORE_RANGE = 1e-9


def diversify(ranking: Ranking, similarities: np.ndarray, diversity: float) -> Ranking:
    """Return the documents of a ranking in the order of their marginal relevance.

    Scores stay with their documents. The first document stays the first.

    Args:
        ranking: Documents and scores, best first.
        similarities: Similarity of each pair of documents, shape (n, n), at most 1.
        diversity: Weight of the similarity, from 0 to 1. 0 keeps the order.

    >>> similarities = np.array([[1, 0.99, 0.2], [0.99, 1, 0.2], [0.2, 0.2, 1]])
    >>> ranking = [("a", 3.0), ("copy of a", 2.9), ("b", 1.0)]
    >>> [document for document, _ in diversify(ranking, similarities, 0.6)]
    ['a', 'b', 'copy of a']
    """
    if len(ranking) < 2 or not diversity:
        return ranking
    scores = np.array([score for _, score in ranking])
    relevance = (scores - scores.min()) / max(float(np.ptp(scores)), MIN_SCORE_RANGE)

    greatest_similarity = np.zeros(len(ranking))
    is_left = np.ones(len(ranking), bool)
    chosen: list[int] = []
    for _ in ranking:
        marginal = (1 - diversity) * relevance - diversity * greatest_similarity
        marginal[~is_left] = -np.inf
        best = int(np.argmax(marginal))
        chosen.append(best)
        is_left[best] = False
        greatest_similarity = np.maximum(greatest_similarity, similarities[best])
    return [ranking[number] for number in chosen]


def term_similarities(term_sets: Sequence[frozenset[str]]) -> np.ndarray:
    """Return the share of common terms (Jaccard) of each pair of texts, shape (n, n).

    >>> term_similarities([frozenset("ab"), frozenset("bc")]).round(2).tolist()
    [[1.0, 0.33], [0.33, 1.0]]
    """
    similarities = np.ones((len(term_sets), len(term_sets)))
    for i, terms in enumerate(term_sets):
        for j in range(i):
            union = len(terms | term_sets[j])
            share = len(terms & term_sets[j]) / max(1, union)
            similarities[i, j] = share
            similarities[j, i] = share
    return similarities
