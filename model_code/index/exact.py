"""Exact search by inner product: every vector is scored in float32, by numpy alone."""

from __future__ import annotations

import numpy as np

from model_code.index.top_k import best_rows

FEW = 12  # queries; of fewer, one pass of dot products for each is faster than a narrow matrix product
SCORES = 2**25  # float32 scores in memory at a time: 128 MiB, or those of FEW queries, where that is more


def nearest(queries: np.ndarray, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the `count` among `vectors` (n, H) nearest to each of `queries` (q, H), all float32.

    Both (q, min(count, n)), float32 and int64: by descending score, equal scores by ascending row. A score's last bits
    may depend on how many queries are asked at once.

    >>> nearest(np.array([[0.0, 1.0]], np.float32), np.eye(2, dtype=np.float32), count=2)
    (array([[1., 0.]], dtype=float32), array([[1, 0]]))
    """
    shape = len(queries), min(count, len(vectors))
    scores, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    step = max(FEW, SCORES // max(1, len(vectors)))
    for start in range(0, len(queries), step):
        for i, products in enumerate(_inner_products(queries[start : start + step], vectors), start):
            best = best_rows(products, count)
            rows[i] = best[np.argsort(-products[best], kind="stable")[: shape[1]]]
            scores[i] = products[rows[i]]
    return scores, rows


def _inner_products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(q, n)."""
    if len(queries) < FEW:
        return np.vecdot(vectors, queries[:, None])
    return queries @ vectors.T
