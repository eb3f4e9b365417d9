"""Learned document vectors: where they start, and what lies beside a dense index of them for later
additions.

In the folder of a `DenseIndex` of one learned vector per document lie the representatives of
IncDSI, which protect what is indexed from what is added: z_j in `representatives.npy`, the mean
vector of the queries that document j was trained on (unscaled, so not of unit norm). Of a document
without any it is the document's own vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_code.files import add_to_manifest, atomic_write

KIND, REPRESENTATIVES = "dsi", "representatives.npy"


def complete(folder: Path, representatives: np.ndarray, encoding_scale: float) -> None:
    """Make a dense index's folder one of this kind: Z (n, H), and the scale of vectors that are
    added later.
    """
    with atomic_write(folder / REPRESENTATIVES) as aside, aside.open("wb") as stream:
        np.save(stream, representatives)
    add_to_manifest(folder, {"kind": KIND, "encoding_scale": encoding_scale})


def sums_of(vectors: np.ndarray, owners: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of each owner's vectors, (count, H) float64, 0 for one that has none, and their
    number, (count,).

    vectors: (N, H). owners: (N,), numbers below `count`.

    >>> sums, counts = sums_of(np.array([[1., 0.], [0., 1.], [1., 0.]]), np.array([2, 2, 0]), count=3)
    >>> sums.tolist(), counts.tolist()
    ([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [1, 0, 2])
    """
    counts = np.bincount(owners, minlength=count)
    sums, present = np.zeros((count, vectors.shape[1])), np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[present]
    order = np.argsort(owners, kind="stable")
    if len(order):
        sums[present] = np.add.reduceat(vectors[order], starts, axis=0, dtype=np.float64)
    return sums, counts


def means_of(vectors: np.ndarray, owners: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each owner's vectors, (count, H) float32, and their number: as `sums_of` has
    them.
    """
    sums, counts = sums_of(vectors, owners, count)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts


def document_means(vectors: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """The mean of each document's passage vectors, scaled to unit norm: (count, H) float32.

    vectors: (N, H), of the passages. documents: (N,), the document of each; every one of `count`
    has a passage.

    >>> passages = np.array([[1., 0.], [0., 1.], [0., 1.]])
    >>> document_means(passages, documents=np.array([0, 0, 1]), count=2).round(3).tolist()
    [[0.707, 0.707], [0.0, 1.0]]
    """
    sums, _ = sums_of(vectors, documents, count)
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
