"""Where passages stand in the hierarchy, in the space of the retriever that is searched.

The tree was clustered from the base encoder's vectors, which a trained retriever no longer makes. So a generation's
tree keeps its shape and gets the centroids of the retriever's own vectors: new passages are placed by them, and their
cosines tell how well the tree still fits, whichever encoder came first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.files import replacing
from model_code.hierarchy.tree import Hierarchy

PLACEMENTS = "placements.safetensors"


@dataclass(frozen=True, eq=False)
class Placements:
    """Of n passages: `paths` (n, depth) int32, and the `cosines` (n,) float32 to the centroids of the nearest leaves.

    The path of a passage that the tree was clustered from is that of the clustering, the nearest leaf or not.
    """

    paths: np.ndarray
    cosines: np.ndarray

    @classmethod
    def find(cls, tree: Hierarchy, vectors: np.ndarray) -> Placements:
        """Place passages with `vectors` (n, H) of any norm."""
        unit = _unit(vectors)
        paths = tree.place(unit)
        return cls(paths, np.einsum("nh,nh->n", unit, tree.centroids[-1][paths[:, -1]], dtype=np.float32))

    def save(self, folder: Path) -> None:
        """Write the file; equal placements give equal bytes."""
        from safetensors.numpy import save_file

        with replacing(folder / PLACEMENTS) as aside:
            save_file({"paths": np.ascontiguousarray(self.paths), "cosines": self.cosines}, aside)

    @classmethod
    def load(cls, folder: Path) -> Placements:
        """Read what `save` wrote."""
        from safetensors.numpy import load_file

        arrays = load_file(folder / PLACEMENTS)
        return cls(arrays["paths"], arrays["cosines"])

    @classmethod
    def join(cls, parts: list[Placements]) -> Placements:
        """Those of several lists of passages, one after the other."""
        return cls(np.concatenate([part.paths for part in parts]), np.concatenate([part.cosines for part in parts]))

    def take(self, rows: np.ndarray) -> Placements:
        """Those of some passages."""
        return Placements(self.paths[rows], self.cosines[rows])


def recentred(tree: Hierarchy, vectors: np.ndarray) -> Hierarchy:
    """The same tree with the centroids of other `vectors` (N, H) of its passages.

    A node's centroid is the mean of the unit vectors below it, scaled to unit norm, as in spherical k-means.
    """
    starts = np.searchsorted(tree.leaves[tree.order], np.arange(len(tree.parents[-1])))
    sums = np.add.reduceat(_unit(vectors)[tree.order], starts, axis=0, dtype=np.float64)  # (leaves, H)
    centroids = [_unit(sums)]
    for parents in tree.parents[:0:-1]:
        sums = np.add.reduceat(sums, np.searchsorted(parents, np.arange(parents[-1] + 1)), axis=0)
        centroids.insert(0, _unit(sums))
    return Hierarchy(tuple(centroids), tree.parents, tree.leaves)


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled to unit norm, float32; a row of zeros stays one."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
