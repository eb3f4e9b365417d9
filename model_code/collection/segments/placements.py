"""The positions of passages in the hierarchy, a tree of passage clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from model_code.files import atomic_write
from model_code.hierarchy.tree import Hierarchy
from model_code.mapped_tensors import map_tensors

PLACEMENTS = "placements.safetensors"


@dataclass(frozen=True, eq=False)
class Placements:
    """The nodes of n passages in a hierarchy, a tree of passage clusters.

    Attributes:
        paths: Node of each passage at each level, (n, depth) int32, from the root to the leaf.
        cosines: Cosine of each passage's vector with the centroid of its leaf, (n,) float32.
    """

    paths: np.ndarray
    cosines: np.ndarray

    @classmethod
    def find(cls, tree: Hierarchy, vectors: np.ndarray) -> Placements:
        """Assign each passage to the leaf with the nearest centroid.

        The clustering may have assigned a passage to another leaf. So the caller must replace the
        paths of the passages that the hierarchy was clustered from.

        Args:
            tree: Hierarchy of passages.
            vectors: Vectors of the n passages, (n, H), of any norm.
        """
        unit_vectors = normalize_rows(vectors)
        # A path is the node of a passage at each level. The last one is its leaf.
        paths = tree.place(unit_vectors)
        leaves = paths[:, -1]
        centroids = tree.centroids[-1][leaves]
        cosines = np.einsum("nh,nh->n", unit_vectors, centroids, dtype=np.float32)
        return cls(paths, cosines)

    def save(self, folder: Path) -> None:
        """Write the placements to a folder. Equal placements give equal bytes."""
        tensors = {"paths": np.ascontiguousarray(self.paths), "cosines": self.cosines}
        with atomic_write(folder / PLACEMENTS) as path:
            save_file(tensors, path)

    @classmethod
    def load(cls, folder: Path) -> Placements:
        """Map the file that `save` wrote into memory."""
        return cls(**map_tensors(folder / PLACEMENTS))

    @classmethod
    def join(cls, placements: Sequence[Placements]) -> Placements:
        """Concatenate the placements of several lists of passages."""
        paths = [passages.paths for passages in placements]
        cosines = [passages.cosines for passages in placements]
        return cls(np.concatenate(paths), np.concatenate(cosines))

    def take(self, rows: np.ndarray) -> Placements:
        """Return the placements of the given passages.

        Args:
            rows: Row numbers (k,) of the passages.
        """
        return Placements(self.paths[rows], self.cosines[rows])


def recenter_hierarchy(tree: Hierarchy, vectors: np.ndarray) -> Hierarchy:
    """Compute the centroids of a hierarchy for other vectors of its passages.

    This is needed if the passages are encoded again with another encoder. The centroid of a node is
    the mean of the unit vectors of its passages, scaled to unit norm, as in spherical k-means.

    Args:
        tree: Hierarchy of N passages.
        vectors: New vectors of the same passages, (N, H), of any norm.

    Returns:
        A hierarchy with the same nodes and the new centroids.
    """
    unit_vectors = normalize_rows(vectors)
    # `tree.order` sorts the passages by leaf, so the passages of a leaf are neighbours. The sum of
    # each leaf begins where its first passage stands.
    leaf_count = len(tree.parents[-1])
    leaf_starts = np.searchsorted(tree.leaves[tree.order], np.arange(leaf_count))
    # Sum of the vectors below each node of a level, (nodes, H). The first level is the leaves.
    sums = np.add.reduceat(unit_vectors[tree.order], leaf_starts, axis=0, dtype=np.float64)
    centroids = [normalize_rows(sums)]

    # From the leaves to the root: `parents` holds the parent of each node of a level, ascending.
    # The root's level is left out, because it has no parents.
    for parents in reversed(tree.parents[1:]):
        parent_count = parents[-1] + 1
        child_starts = np.searchsorted(parents, np.arange(parent_count))
        sums = np.add.reduceat(sums, child_starts, axis=0)
        centroids.append(normalize_rows(sums))
    centroids.reverse()
    return Hierarchy(tuple(centroids), tree.parents, tree.leaves)


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale rows (n, H) to unit norm, in float32. A row of zeros stays zero.

    >>> normalize_rows(np.array([[0.0, 0.5], [0.0, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    divisors = np.where(norms > 0, norms, 1)
    return (vectors / divisors).astype(np.float32)
