"""The positions of passages in the hierarchy, a tree of passage clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.hierarchy.tree import BLOCK_PASSAGES, PLACEMENT_BEAM, Hierarchy
from model_code.mapped_tensors import map_tensors, write_tensors

PLACEMENTS = "placements.safetensors"
# Number of passages up to which each is compared with all leaves of a hierarchy.
MAX_EXACT_PLACEMENTS = 200_000


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
        paths of the passages that the hierarchy was clustered from. More than
        `MAX_EXACT_PLACEMENTS` passages descend the tree, which rarely misses the nearest leaf.

        Args:
            tree: Hierarchy of passages.
            vectors: Vectors of the n passages, (n, H), of any norm.
        """
        beam = None
        if len(vectors) > MAX_EXACT_PLACEMENTS:
            beam = PLACEMENT_BEAM

        # A path is the node of a passage at each level. The last one is its leaf.
        paths = np.empty((len(vectors), tree.depth), np.int32)
        cosines = np.empty(len(vectors), np.float32)
        for start in range(0, len(vectors), BLOCK_PASSAGES):
            block = slice(start, start + BLOCK_PASSAGES)
            unit_vectors = normalize_rows(vectors[block])
            paths[block] = tree.place(unit_vectors, beam)
            centroids = tree.centroids[-1][paths[block, -1]]
            cosines[block] = np.einsum("nh,nh->n", unit_vectors, centroids, dtype=np.float32)
        return cls(paths, cosines)

    def save(self, folder: Path) -> None:
        """Write the placements to a folder. Equal placements give equal bytes."""
        tensors = {"paths": np.ascontiguousarray(self.paths), "cosines": self.cosines}
        write_tensors(tensors, folder / PLACEMENTS)

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
    # Sum of the vectors below each node of a level, (nodes, H). The first level is the leaves.
    sums = _sum_by_leaf(tree, vectors)
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


def _sum_by_leaf(tree: Hierarchy, vectors: np.ndarray) -> np.ndarray:
    """Return the sum of the unit vectors of each leaf's passages, (leaves, H) float64.

    The vectors are read leaf by leaf, some leaves at a time, so that they need not fit into memory.
    """
    # `tree.order` sorts the passages by leaf, so the passages of a leaf are neighbours.
    leaf_count = len(tree.parents[-1])
    starts = np.searchsorted(tree.leaves[tree.order], np.arange(leaf_count + 1))
    sums = np.empty((leaf_count, vectors.shape[1]))
    first = 0
    while first < leaf_count:
        # Take all leaves that fit into a block, and at least one.
        end = int(np.searchsorted(starts, starts[first] + BLOCK_PASSAGES, side="right")) - 1
        end = max(end, first + 1)
        passages = tree.order[starts[first] : starts[end]]
        unit_vectors = normalize_rows(vectors[passages])
        leaf_starts = starts[first:end] - starts[first]
        sums[first:end] = np.add.reduceat(unit_vectors, leaf_starts, axis=0, dtype=np.float64)
        first = end
    return sums


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale rows (n, H) to unit norm, in float32. A row of zeros stays zero.

    >>> normalize_rows(np.array([[0.0, 0.5], [0.0, 0.0]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    divisors = np.where(norms > 0, norms, 1)
    return (vectors / divisors).astype(np.float32)
