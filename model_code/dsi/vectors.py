"""Learned document vectors: where they start, and what lies beside a dense index of them for later additions.

In the folder of a `DenseIndex` of one learned vector per document lie the representatives of IncDSI, which protect what
is indexed from what is added: z_j in `representatives.npy`, the mean vector of the queries that document j was trained
on (unscaled, so not of unit norm), and their number in `query_counts.npy`. A document without any has number 0, and its
own vector is z_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.files import replacing
from model_code.manifest import add_facts

KIND = "dsi"
REPRESENTATIVES, QUERY_COUNTS = "representatives.npy", "query_counts.npy"


@dataclass(frozen=True, eq=False)
class Representatives:
    """What stands for the queries of each of n documents."""

    vectors: np.ndarray  # (n, H) float32
    counts: np.ndarray  # (n,) int64

    def complete(self, folder: Path, encoding_scale: float) -> None:
        """Make a dense index's folder one of this kind; encoding_scale: of vectors that are added later."""
        for name, array in ((REPRESENTATIVES, self.vectors), (QUERY_COUNTS, self.counts)):
            with replacing(folder / name) as aside, aside.open("wb") as stream:
                np.save(stream, array)
        add_facts(folder, {"kind": KIND, "encoding_scale": encoding_scale})

    @classmethod
    def load(cls, folder: Path) -> Representatives:
        """Read them, vectors memory-mapped."""
        return cls(np.load(folder / REPRESENTATIVES, mmap_mode="r"), np.load(folder / QUERY_COUNTS))


def sums_of(vectors: np.ndarray, owners: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of each owner's vectors, (count, H) float64, 0 for one that has none, and their number, (count,).

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


def document_means(vectors: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """The mean of each document's passage vectors, scaled to unit norm: (count, H) float32.

    vectors: (N, H), of the passages. documents: (N,), the document of each; every one of `count` has a passage.

    >>> passages = np.array([[1., 0.], [0., 1.], [0., 1.]])
    >>> document_means(passages, documents=np.array([0, 0, 1]), count=2).round(3).tolist()
    [[0.707, 0.707], [0.0, 1.0]]
    """
    sums, _ = sums_of(vectors, documents, count)
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
