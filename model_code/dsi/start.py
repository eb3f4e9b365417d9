"""Where document vectors start from."""

from __future__ import annotations

import numpy as np


def document_means(vectors: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """The mean of each document's passage vectors, scaled to unit norm: (count, H) float32.

    vectors: (N, H), of the passages. documents: (N,), the document of each; every one of `count` has a passage.

    >>> passages = np.array([[1., 0.], [0., 1.], [0., 1.]])
    >>> document_means(passages, documents=np.array([0, 0, 1]), count=2).round(3).tolist()
    [[0.707, 0.707], [0.0, 1.0]]
    """
    order = np.argsort(documents, kind="stable")
    starts = np.searchsorted(documents[order], np.arange(count))
    sums = np.add.reduceat(vectors[order], starts, axis=0, dtype=np.float64)  # (count, H)
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)


def random_vectors(count: int, dimension: int, seed: int) -> np.ndarray:
    """`count` vectors uniform in +-1/sqrt(H), (count, H) float32: the start as published (IncDSI, section 3).

    >>> bool((np.abs(random_vectors(3, 16, seed=0)) <= 0.25).all())
    True
    """
    bound = dimension**-0.5
    return np.random.default_rng(seed).uniform(-bound, bound, (count, dimension)).astype(np.float32)
