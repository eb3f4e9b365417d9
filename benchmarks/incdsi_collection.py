"""A collection made up for timing: clustered, with near-duplicates, and as many strong directions as text has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FALLING, FLAT = 0.5, 0.0  # by which power of its rank a direction's deviation falls
CLUSTER, COPIES, QUERIES = 40, 3, 3
BLOCK = 50_000


@dataclass(frozen=True)
class Collection:
    """V `vectors` and Z `queries` (n, H) float32 of the old documents, and the queries (a, 3, H) of the new ones."""

    vectors: np.ndarray
    queries: np.ndarray
    new: np.ndarray


def collection(documents: int, added: int, dimension: int, decay: float = FALLING) -> Collection:
    """Unit vectors in clusters of about 40 with near-duplicates, and queries of length 0.8 near their documents.

    With `decay` FALLING, direction i has deviation i^-1/2: the first 32, 96 and 192 of 384 hold .59, .78 and .90 of the
    energy, where those of 31,513 pages by all-MiniLM-L6-v2 hold .48, .75 and .93. With FLAT all directions are alike.
    The directions are turned at random against the axes, as an encoder's are.
    """
    chance = np.random.default_rng(0)
    source = _Source(chance, np.arange(1, dimension + 1, dtype=np.float32) ** -np.float32(decay))
    total = documents + added
    clusters, pages = source(total // CLUSTER + 1), total // COPIES + 1
    centres = _unit(clusters[chance.integers(len(clusters), size=pages)] + np.float32(0.9) * source(pages))
    turn = np.linalg.qr(chance.standard_normal((dimension, dimension)))[0].astype(np.float32)
    vectors, means = np.empty((2, documents, dimension), np.float32)
    for start in range(0, documents, BLOCK):
        part = slice(start, min(start + BLOCK, documents))
        found, queries = _documents(source, centres, part.stop - start)
        vectors[part], means[part] = found @ turn, queries.mean(axis=1) @ turn
    return Collection(vectors, means, _documents(source, centres, added)[1] @ turn)


class _Source:
    """Random unit vectors whose direction i has a deviation in proportion to `spectrum` (H)."""

    def __init__(self, chance: np.random.Generator, spectrum: np.ndarray) -> None:
        self.chance, self.spectrum = chance, spectrum

    def __call__(self, *shape: int) -> np.ndarray:
        return _unit(self.chance.standard_normal((*shape, len(self.spectrum)), np.float32) * self.spectrum)


def _documents(source: _Source, centres: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (count, H) near centres, about as many near each, and their queries (count, 3, H)."""
    vectors = _unit(centres[source.chance.integers(len(centres), size=count)] + np.float32(0.3) * source(count))
    return vectors, np.float32(0.8) * _unit(vectors[:, None] + np.float32(0.8) * source(count, QUERIES))


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
