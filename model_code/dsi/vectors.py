"""Learned document vectors: where they start, and the folder `document_vectors/` with what later additions need.

Beside `vectors.npy` and `document_ids.json` lie the representatives of IncDSI, which protect what is indexed from what
is added: z_j in `representatives.npy`, the mean vector of the queries that document j was trained on (unscaled, so not
of unit norm), and their number in `query_counts.npy`. A document without any has number 0, and its own vector is z_j.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.files import read_json, replacing, write_text
from model_code.manifest import read_manifest, seal, verify

FORMAT, KIND = 2, "document_vectors"
VECTORS, DOCUMENT_IDS = "vectors.npy", "document_ids.json"
REPRESENTATIVES, QUERY_COUNTS = "representatives.npy", "query_counts.npy"


@dataclass(frozen=True, eq=False)
class Representatives:
    """What stands for the queries of each of n documents."""

    vectors: np.ndarray  # (n, H) float32
    counts: np.ndarray  # (n,) int64

    def save(self, folder: Path) -> None:
        """Write both arrays; the folder is sealed by whoever owns it."""
        _save(folder / REPRESENTATIVES, self.vectors)
        _save(folder / QUERY_COUNTS, self.counts)

    @classmethod
    def load(cls, folder: Path) -> Representatives:
        """Read what `save` wrote, vectors memory-mapped."""
        return cls(np.load(folder / REPRESENTATIVES, mmap_mode="r"), np.load(folder / QUERY_COUNTS))


@dataclass(frozen=True, eq=False)
class DocumentVectors:
    """Learned vectors of n documents, and the fingerprint of the query encoder that they answer to."""

    vectors: np.ndarray  # (n, H) float32, of any norm
    document_ids: list[str]  # n
    representatives: Representatives
    fingerprint: str
    encoding_scale: float = 1.0  # of the vectors of documents that are added later, see `encoding_scale.py`

    def save(self, folder: Path) -> None:
        """Write and seal the folder; equal vectors give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        _save(folder / VECTORS, self.vectors)
        write_text(folder / DOCUMENT_IDS, json.dumps(self.document_ids, ensure_ascii=False, separators=(",", ":")))
        self.representatives.save(folder)
        sizes = {"documents": len(self.document_ids), "dimension": self.vectors.shape[1]}
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "encoding_scale": self.encoding_scale}
        seal(folder, FORMAT, facts | sizes)

    @classmethod
    def load(cls, folder: Path) -> DocumentVectors:
        """Read what `save` wrote, vectors memory-mapped; FreshetError if a file is not what the manifest says."""
        manifest = read_manifest(folder, FORMAT)
        verify(folder, manifest)
        return cls(
            np.load(folder / VECTORS, mmap_mode="r"),
            read_json(folder / DOCUMENT_IDS),
            Representatives.load(folder),
            manifest["fingerprint"],
            manifest["encoding_scale"],
        )


def _save(path: Path, array: np.ndarray) -> None:
    with replacing(path) as aside, aside.open("wb") as stream:
        np.save(stream, array)


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
