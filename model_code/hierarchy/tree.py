"""The hierarchy as compact arrays: one centroid and one parent per node, one leaf node per passage.

Levels are counted from the root: the root is level 0 and has no array, levels 1 to `depth` hold the
clusters, and the passages are the tree's leaves, all at level `depth + 1` (HCE, section 4.1). The
nodes of a level are ordered by parent, so the children of a node are a range, and so are the
passages below it in `order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.errors import FreshetError
from model_code.files import atomic_write, read_json, write_json

FORMAT = 1
TENSORS, SUMMARY = "hierarchy.safetensors", "hierarchy.json"
DOCUMENT_IDS = "document_ids.json"  # beside them in a build: the document of each passage
TOPICS = "topics.json"  # the names of its nodes, level by level


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A tree of fixed depth over N passages, whose vectors have H components.

    >>> two_topics = np.eye(2, dtype=np.float32)
    >>> tree = Hierarchy((two_topics,), (np.zeros(2, np.int32),), np.array([0, 1, 0], np.int32))
    >>> tree.depth, tree.path(1), tree.documents_under(1, 0).tolist()
    (1, (1,), [0, 2])
    >>> tree.place(np.array([[.6, .8]], np.float32)).tolist()
    [[1]]
    """

    centroids: tuple[np.ndarray, ...]  # level t: (K_t, H) float32, unit norm
    # level t: (K_t,) int32, the parent at level t - 1, ascending; 0 at level 1
    parents: tuple[np.ndarray, ...]
    leaves: np.ndarray  # (N,) int32: each passage's node at level `depth`

    def __post_init__(self) -> None:
        """Refuse arrays that are not a tree with at least one passage under every node."""
        _require(
            len(self.centroids) == len(self.parents) >= 1,
            "one array of centroids and of parents per level",
        )
        above = 1
        for centroids, parents in zip(self.centroids, self.parents, strict=True):
            sizes = len(parents), self.centroids[0].shape[1]
            _require(centroids.shape == sizes, "K_t centroids and K_t parents at level t")
            _require(bool((np.diff(parents) >= 0).all()), "nodes ordered by parent")
            _require(
                np.array_equal(np.unique(parents), np.arange(above)), "at least one child per node"
            )
            above = len(parents)
        _require(
            np.array_equal(np.unique(self.leaves), np.arange(above)),
            "at least one passage per node",
        )

    @property
    def depth(self) -> int:
        """Number of levels between the root and the passages."""
        return len(self.centroids)

    @property
    def dimension(self) -> int:
        """Number of components H of a vector."""
        return self.centroids[0].shape[1]

    @cached_property
    def order(self) -> np.ndarray:
        """The passages leaf by leaf, ascending within each: (N,) int64. A node's passages are a
        range of it.
        """
        return np.argsort(self.leaves, kind="stable")

    def path(self, passage: int) -> tuple[int, ...]:
        """The nodes at levels 1 to `depth` above a passage."""
        return tuple(self._ancestors[self.leaves[passage]].tolist())

    def paths(self) -> np.ndarray:
        """The path of each passage: (N, depth) int32."""
        return self._ancestors[self.leaves]

    def documents_under(self, level: int, node: int) -> np.ndarray:
        """The passages below a node at `level` (1 to `depth`), leaf by leaf: a view of `order`."""
        leaves = np.searchsorted(self._ancestors[:, level - 1], [node, node + 1])
        return self.order[slice(*self._starts[leaves])]

    def sizes(self, level: int) -> np.ndarray:
        """How many passages lie below each node at `level` (1 to `depth`): (K_level,) int64."""
        return np.bincount(
            self._ancestors[self.leaves, level - 1], minlength=len(self.parents[level - 1])
        )

    def place(self, vectors: np.ndarray, chunk: int = 1024) -> np.ndarray:
        """The paths of new vectors (n, H): (n, depth) int32, each through the leaf node of the
        nearest centroid.

        The nearest leaf node maximises what the clustering maximised, the cosine to the centroid,
        whichever way the tree was built; greedy descent can be misled at the root, where centroids
        are means of far-apart passages.
        """
        starts = range(0, len(vectors), chunk)
        nearest = [np.argmax(vectors[i : i + chunk] @ self.centroids[-1].T, axis=1) for i in starts]
        return (
            self._ancestors[np.concatenate(nearest)]
            if nearest
            else np.empty((0, self.depth), np.int32)
        )

    def save(self, folder: Path) -> None:
        """Write `hierarchy.safetensors` and a summary, `hierarchy.json`; equal trees give equal
        bytes.
        """
        arrays = {"leaves": self.leaves}
        for level in range(1, self.depth + 1):
            arrays[f"centroids.{level}"] = self.centroids[level - 1]
            arrays[f"parents.{level}"] = self.parents[level - 1]
        with atomic_write(folder / TENSORS) as aside:
            save_file(arrays, aside)
        nodes = [len(parents) for parents in self.parents]
        summary = {
            "format": FORMAT,
            "depth": self.depth,
            "dimension": self.dimension,
            "passages": len(self.leaves),
        }
        write_json(folder / SUMMARY, summary | {"nodes": nodes})

    @classmethod
    def load(cls, folder: Path) -> Hierarchy:
        """Read what `save` wrote."""
        summary = read_json(folder / SUMMARY)
        if summary["format"] != FORMAT:
            raise FreshetError(
                f"{folder / SUMMARY} has format {summary['format']}, but this version reads {FORMAT}; "
                "build the hierarchy again: freshet run hierarchy"
            )
        arrays = load_file(folder / TENSORS)
        levels = range(1, summary["depth"] + 1)
        centroids = tuple(arrays[f"centroids.{level}"] for level in levels)
        return cls(
            centroids, tuple(arrays[f"parents.{level}"] for level in levels), arrays["leaves"]
        )

    @cached_property
    def _ancestors(self) -> np.ndarray:
        """Path of each leaf node: (K_depth, depth) int32; every column ascends."""
        columns = [np.arange(len(self.parents[-1]), dtype=np.int32)]
        for parents in self.parents[:0:-1]:
            columns.insert(0, parents[columns[0]])
        return np.stack(columns, axis=1)

    @cached_property
    def _starts(self) -> np.ndarray:
        """Where each leaf node's passages begin in `order`, and the end: (K_depth + 1,)."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.leaves))])


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise FreshetError(
            f"these arrays are not a hierarchy: it has {rule}; build it with build_hierarchy"
        )
