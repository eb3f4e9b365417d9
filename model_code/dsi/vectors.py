"""Document vectors: means of passages and queries, and the files that later additions need.

A folder of learned vectors is a `DenseIndex` with one row per document. It also holds the
representatives Z of IncDSI. With them IncDSI keeps a document that is added later from outranking
the documents in the index. Row j of Z is the mean vector of the queries that document j was trained
on. The mean is not scaled to unit norm. The representative of a document without queries is the
document's own vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_code.files import add_to_manifest, write_array

KIND = "dsi"
REPRESENTATIVES = "representatives.npy"


def add_representatives(folder: Path, representatives: np.ndarray, encoding_scale: float) -> None:
    """Add the mean query vector of each document to a dense index, and make its kind `dsi`.

    Args:
        folder: Folder of a saved `DenseIndex` with one row per document.
        representatives: Mean query vectors Z of the documents, (n, H).
        encoding_scale: Norm of the vectors of documents that are added later.
    """
    write_array(folder / REPRESENTATIVES, representatives)
    add_to_manifest(folder, {"kind": KIND, "encoding_scale": encoding_scale})


def sum_by_owner(
    vectors: np.ndarray, owners: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add up the vectors of each owner.

    Args:
        vectors: N vectors, (N, H).
        owners: The owner of each vector, a number below `count`, (N,).
        count: Number of owners.

    Returns:
        Sums, (count, H) float64, 0 for an owner without vectors, and the number of vectors of each
        owner, (count,).

    >>> vectors = np.array([[1., 0.], [0., 1.], [1., 0.]])
    >>> sums, counts = sum_by_owner(vectors, np.array([2, 2, 0]), count=3)
    >>> sums.tolist(), counts.tolist()
    ([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [1, 0, 2])
    """
    sums = np.zeros((count, vectors.shape[1]))
    counts = np.bincount(owners, minlength=count)
    if len(owners):
        # Sort the vectors by owner, and add up the slice of each owner that has some.
        order = np.argsort(owners, kind="stable")
        owners_with_vectors = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[owners_with_vectors]
        sums[owners_with_vectors] = np.add.reduceat(
            vectors[order], starts, axis=0, dtype=np.float64
        )
    return sums, counts


def mean_by_owner(
    vectors: np.ndarray, owners: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each owner's mean vector, (count, H) float32, and number of vectors, (count,).

    See `sum_by_owner` for the arguments. The mean of an owner without vectors is 0.
    """
    sums, counts = sum_by_owner(vectors, owners, count)
    means = sums / np.maximum(counts, 1)[:, None]
    return means.astype(np.float32), counts


def document_means(vectors: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """Return the mean of each document's passage vectors, scaled to unit norm.

    Args:
        vectors: Vectors of the passages, (N, H).
        documents: Number of each passage's document, (N,). Every document has a passage.
        count: Number of documents.

    Returns:
        Means, (count, H) float32.

    >>> passages = np.array([[1., 0.], [0., 1.], [0., 1.]])
    >>> document_means(passages, documents=np.array([0, 0, 1]), count=2).round(3).tolist()
    [[0.707, 0.707], [0.0, 1.0]]
    """
    # The sum is enough: it has the direction of the mean, and is scaled to unit norm.
    sums, _ = sum_by_owner(vectors, documents, count)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return (sums / norms).astype(np.float32)
