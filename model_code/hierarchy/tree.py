"""The hierarchy as compact arrays: a centroid and a parent per node, and a leaf node per passage.

Levels are counted from the root. The root is level 0 and has no array. Levels 1 to `depth` hold the
clusters. The passages are the tree's leaves, all at level `depth + 1` (HCE, section 4.1).

The nodes of a level are ordered by their parents. So the children of a node have consecutive
numbers, and the passages below it are consecutive in `Hierarchy.order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.errors import FreshetError
from model_code.files import atomic_write, read_json, write_json

# Number of vectors that are compared with nodes at once.
CHUNK_VECTORS = 1024
# Number of passages whose vectors are read at a time, so that all need not fit into memory. It is a
# multiple of `CHUNK_VECTORS`.
BLOCK_PASSAGES = 8192
# Number of nodes of each level whose children are compared with each of many passages.
PLACEMENT_BEAM = 8

# Version of the format of a hierarchy, and its files.
FORMAT = 1
TENSORS = "hierarchy.safetensors"
SUMMARY = "hierarchy.json"
# Further files in the folder of a build: the document of each passage, and the names of the nodes.
DOCUMENT_IDS = "document_ids.json"
TOPICS = "topics.json"


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A tree of fixed depth over N passages, whose vectors have H dimensions.

    Attributes:
        centroids: For each level t, the centroids of its K_t nodes, (K_t, H) float32, of unit norm.
        parents: For each level t, the number of each node's parent at level t - 1, ascending,
            (K_t,) int32. It is 0 at level 1.
        leaves: Node of each passage at level `depth`, (N,) int32.

    >>> two_topics = np.eye(2, dtype=np.float32)
    >>> tree = Hierarchy((two_topics,), (np.zeros(2, np.int32),), np.array([0, 1, 0], np.int32))
    >>> tree.depth, tree.path(1), tree.documents_under(1, 0).tolist()
    (1, (1,), [0, 2])
    >>> tree.place(np.array([[.6, .8]], np.float32)).tolist()
    [[1]]
    """

    centroids: tuple[np.ndarray, ...]
    parents: tuple[np.ndarray, ...]
    leaves: np.ndarray

    def __post_init__(self) -> None:
        """Check that the arrays describe a tree with at least one passage under every node."""
        _require(
            len(self.centroids) == len(self.parents) >= 1,
            "one array of centroids and of parents per level",
        )

        nodes_above = 1
        for centroids, parents in zip(self.centroids, self.parents, strict=True):
            shape = (len(parents), self.dimension)
            _require(centroids.shape == shape, "K_t centroids and K_t parents at level t")
            _require(bool((np.diff(parents) >= 0).all()), "nodes ordered by parent")
            has_all_parents = np.array_equal(np.unique(parents), np.arange(nodes_above))
            _require(has_all_parents, "at least one child per node")
            nodes_above = len(parents)

        has_all_leaves = np.array_equal(np.unique(self.leaves), np.arange(nodes_above))
        _require(has_all_leaves, "at least one passage per node")

    @property
    def depth(self) -> int:
        """Number of levels between the root and the passages."""
        return len(self.centroids)

    @property
    def dimension(self) -> int:
        """Number of dimensions H of a vector."""
        return self.centroids[0].shape[1]

    @cached_property
    def order(self) -> np.ndarray:
        """The passages leaf by leaf, ascending within each leaf: (N,) int64.

        The passages below any node are consecutive in it.
        """
        return np.argsort(self.leaves, kind="stable")

    def path(self, passage: int) -> tuple[int, ...]:
        """Return the nodes at levels 1 to `depth` above a passage."""
        return tuple(self._ancestors[self.leaves[passage]].tolist())

    def paths(self) -> np.ndarray:
        """Return the path of every passage: (N, depth) int32."""
        return self._ancestors[self.leaves]

    def documents_under(self, level: int, node: int) -> np.ndarray:
        """Return the passages below a node, leaf by leaf: a view of `order`.

        Args:
            level: Level of the node, 1 to `depth`.
            node: Number of the node within its level.
        """
        # The leaf nodes below a node are consecutive, because nodes are ordered by their parents.
        # So a binary search finds the first and the last one.
        first_leaf, end_leaf = np.searchsorted(self._ancestors[:, level - 1], [node, node + 1])
        return self.order[self._starts[first_leaf] : self._starts[end_leaf]]

    def sizes(self, level: int) -> np.ndarray:
        """Count the passages below each node at `level` (1 to `depth`): (K_level,) int64."""
        nodes = self._ancestors[self.leaves, level - 1]
        return np.bincount(nodes, minlength=len(self.parents[level - 1]))

    def place(self, vectors: np.ndarray, beam: int | None = None) -> np.ndarray:
        """Return the path of nodes for each new vector: the leaf node of the nearest centroid.

        The leaf node with the greatest cosine to the vector is chosen, as in the clustering, and
        its ancestors complete the path.

        Args:
            vectors: Vectors of n passages, (n, H).
            beam: Width of an approximate search; see `nearest_leaves`.

        Returns:
            Paths, (n, depth) int32.
        """
        if not len(vectors):
            return np.empty((0, self.depth), np.int32)
        return self._ancestors[self.nearest_leaves(vectors, beam)]

    def nearest_leaves(self, vectors: np.ndarray, beam: int | None = None) -> np.ndarray:
        """Return the leaf node with the nearest centroid for each vector, (n,) int64.

        Without a beam, each vector is compared with all leaf nodes. With a beam, it descends the
        tree, and only the children of the `beam` nearest nodes of each level are compared. This is
        faster for many vectors and rarely misses the nearest leaf node. A descent with a beam of 1
        would miss it often, because centroids near the root are means of very different passages.

        Args:
            vectors: Vectors of n passages, (n, H).
            beam: Number of nodes per level whose children are compared. None compares all.
        """
        nearest = [np.empty(0, np.int64)]
        for start in range(0, len(vectors), CHUNK_VECTORS):
            chunk = vectors[start : start + CHUNK_VECTORS]
            if beam is None:
                nearest.append(np.argmax(chunk @ self.centroids[-1].T, axis=1))
            else:
                nearest.append(self._descend(chunk, beam))
        return np.concatenate(nearest)

    def _descend(self, vectors: np.ndarray, beam: int) -> np.ndarray:
        """Return the nearest leaf node among the children of `beam` nodes per level, (n,) int64."""
        # The nodes of the level that were found for each vector, (n, b). At first it is the root.
        nodes = np.zeros((len(vectors), 1), np.int64)
        for level, centroids in enumerate(self.centroids):
            # The children of a node are consecutive, since the nodes of a level are ordered by
            # their parents.
            child_counts = np.bincount(self.parents[level])
            first_children = np.cumsum(child_counts) - child_counts
            scores = _score_children(vectors, nodes, centroids, first_children, child_counts)

            # A vector with few children must not get more nodes than it has children.
            smallest_choice = int(child_counts[nodes].sum(axis=1).min())
            is_last_level = level + 1 == self.depth
            width = 1 if is_last_level else min(beam, smallest_choice)
            best = _largest_columns(scores.reshape(len(vectors), -1), width)
            parent_columns, child_numbers = np.divmod(best, scores.shape[2])
            parents = np.take_along_axis(nodes, parent_columns, axis=1)
            nodes = first_children[parents] + child_numbers
        return nodes[:, 0]

    def save(self, folder: Path) -> None:
        """Write the arrays and a summary of them. Equal trees give equal bytes."""
        arrays = {"leaves": self.leaves}
        for level in range(1, self.depth + 1):
            arrays[f"centroids.{level}"] = self.centroids[level - 1]
            arrays[f"parents.{level}"] = self.parents[level - 1]
        with atomic_write(folder / TENSORS) as temporary_file:
            save_file(arrays, temporary_file)

        summary = {
            "format": FORMAT,
            "depth": self.depth,
            "dimension": self.dimension,
            "passages": len(self.leaves),
            "nodes": [len(parents) for parents in self.parents],
        }
        write_json(folder / SUMMARY, summary)

    @classmethod
    def load(cls, folder: Path) -> Hierarchy:
        """Read what `save` wrote.

        Raises:
            FreshetError: If the folder has another format, or its arrays are not a tree.
        """
        summary = read_json(folder / SUMMARY)
        if summary["format"] != FORMAT:
            raise FreshetError(
                f"{folder / SUMMARY} has format {summary['format']}, but this version reads "
                f"{FORMAT}; build the hierarchy again: freshet run hierarchy"
            )

        arrays = load_file(folder / TENSORS)
        levels = range(1, summary["depth"] + 1)
        centroids = tuple(arrays[f"centroids.{level}"] for level in levels)
        parents = tuple(arrays[f"parents.{level}"] for level in levels)
        return cls(centroids, parents, arrays["leaves"])

    @cached_property
    def _ancestors(self) -> np.ndarray:
        """The path of each leaf node, (K_depth, depth) int32, with every column ascending."""
        # One column per level: the leaf nodes themselves, then their parents, and so on up to level
        # 1.
        columns = [np.arange(len(self.parents[-1]), dtype=np.int32)]
        for level in range(self.depth - 1, 0, -1):
            parents_of_level_below = self.parents[level]
            columns.insert(0, parents_of_level_below[columns[0]])
        return np.stack(columns, axis=1)

    @cached_property
    def _starts(self) -> np.ndarray:
        """Position of each leaf node's first passage in `order`, then N, (K_depth + 1,)."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.leaves))])


def _score_children(
    vectors: np.ndarray,
    nodes: np.ndarray,
    centroids: np.ndarray,
    first_children: np.ndarray,
    child_counts: np.ndarray,
) -> np.ndarray:
    """Return the products of vectors with the centroids of the children of some nodes.

    Args:
        vectors: Vectors, (n, H).
        nodes: Nodes whose children are compared with each vector, (n, b).
        centroids: Centroids of the level of the children, (K, H).
        first_children: Number of the first child of each node.
        child_counts: Number of children of each node.

    Returns:
        Products, (n, b, c), where c is the largest number of children. They are -inf where a node
        has fewer children.
    """
    largest_count = child_counts[nodes].max()
    scores = np.full((*nodes.shape, largest_count), -np.inf, np.float32)

    # All vectors that are compared with the same children are multiplied at once. So the pairs of
    # vectors and nodes are sorted by node.
    pair_nodes = nodes.ravel()
    order = np.argsort(pair_nodes, kind="stable")
    distinct_nodes, starts = np.unique(pair_nodes[order], return_index=True)
    pairs_by_node = np.split(order, starts[1:])
    for node, pairs in zip(distinct_nodes.tolist(), pairs_by_node, strict=True):
        rows, columns = np.divmod(pairs, nodes.shape[1])
        first = first_children[node]
        count = child_counts[node]
        children = centroids[first : first + count]
        scores[rows, columns, :count] = vectors[rows] @ children.T
    return scores


def _largest_columns(scores: np.ndarray, width: int) -> np.ndarray:
    """Return the columns of the `width` largest entries of each row of `scores`, (n, width)."""
    if width == 1:
        return np.argmax(scores, axis=1)[:, None]
    smallest = scores.shape[1] - width
    return np.argpartition(scores, smallest, axis=1)[:, smallest:]


def _require(condition: bool, rule: str) -> None:
    """Raise FreshetError unless the arrays of a hierarchy keep a rule of trees."""
    if not condition:
        raise FreshetError(
            f"these arrays are not a hierarchy: it has {rule}; build it with build_hierarchy"
        )
