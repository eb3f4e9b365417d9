"""Maximal marginal relevance (MMR): a ranking whose first documents do not repeat each other.

The documents of a ranking are ordered again, one after the other. The next document is always the
remaining one with the highest

    (1 - diversity) * relevance - diversity * (greatest similarity to a document chosen before).

Relevance is the score, scaled to the range from 0 to 1 over the ranking (Carbonell and Goldstein,
1998, The Use of MMR).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.retrieval.protocol import Ranking

# Lower limit of the range by which scores are divided. It avoids a division by 0 for equal scores.
MIN_SCORE_RANGE = 1e-9


def diversify(ranking: Ranking, similarities: np.ndarray, diversity: float) -> Ranking:
    """Order a ranking by marginal relevance, so that similar documents do not follow each other.

    Documents keep their scores, which are then no longer in descending order. The first document
    stays the first.

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
    """Return the Jaccard similarity of each pair of n texts, shape (n, n), float64.

    Args:
        term_sets: The terms of each text.

    >>> term_similarities([frozenset("ab"), frozenset("bc")]).round(2).tolist()
    [[1.0, 0.33], [0.33, 1.0]]
    """
    # scipy takes a while to import, and only retrievers without vectors need it here.
    from scipy import sparse

    # Each text is a row of a table of texts and terms, with 1 for each of its terms.
    numbers: dict[str, int] = {}
    columns: list[int] = []
    for terms in term_sets:
        columns.extend(numbers.setdefault(term, len(numbers)) for term in terms)
    sizes = np.array([len(terms) for terms in term_sets], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shape = (len(term_sets), max(1, len(numbers)))
    table = sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape)

    common = (table @ table.T).toarray()
    union = sizes[:, np.newaxis] + sizes - common
    similarities = common / np.maximum(union, 1)
    np.fill_diagonal(similarities, 1.0)
    return similarities
