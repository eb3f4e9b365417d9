"""Guards the hierarchy's arrays: paths, families and passages of a node agree with each other, new
vectors are placed under the nearest leaf node, saving and loading is identity, and arrays that are
no tree are refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json
from model_code.hierarchy.tree import Hierarchy


@pytest.fixture
def tree() -> Hierarchy:
    """Nine passages; level 1: nodes 0, 1; level 2: 0, 1, 2 below 0, and 3 below 1."""
    level_2 = np.eye(4, dtype=np.float32)
    level_1 = np.array([[3, 3, 3, 0], [0, 0, 0, 1]], np.float32)
    level_1 /= np.linalg.norm(level_1, axis=1, keepdims=True)
    parents = (np.zeros(2, np.int32), np.array([0, 0, 0, 1], np.int32))
    return Hierarchy((level_1, level_2), parents, np.array([3, 0, 1, 2, 0, 1, 3, 3, 2], np.int32))


def test_paths_lead_to_the_leaf_node(
    tree: Hierarchy,
) -> None:
    assert tree.depth == 2
    assert (tree.path(0), tree.path(2)) == ((1, 3), (0, 1))
    assert [tree.path(passage) for passage in range(9)] == [
        tuple(path) for path in tree.paths().tolist()
    ]
    for level in (1, 2):
        nodes = range(len(tree.parents[level - 1]))
        under = [tree.documents_under(level, node).tolist() for node in nodes]
        assert sorted(sum(under, [])) == list(range(9))
        assert [len(passages) for passages in under] == tree.sizes(level).tolist()
        for node, passages in enumerate(under):
            assert all(tree.path(passage)[level - 1] == node for passage in passages)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_new_vectors_go_below_the_nearest_leaf_node(tree: Hierarchy, chunk: int) -> None:
    vectors = np.array([[0.1, 0.9, 0, 0], [0, 0, 0.2, 5], [0.5, 0, 0.6, 0.59]], np.float32)
    assert tree.place(vectors, chunk).tolist() == [[0, 1], [1, 3], [0, 2]]
    assert tree.place(vectors[:0]).shape == (0, 2)


def test_saved_tree_loads_unchanged(tree: Hierarchy, tmp_path: Path) -> None:
    tree.save(tmp_path / "a")
    loaded = Hierarchy.load(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")
    arrays = [(*each.centroids, *each.parents, each.leaves) for each in (tree, loaded)]
    for one, other in zip(*arrays, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    facts = read_json(tmp_path / "a" / "hierarchy.json")
    assert facts["nodes"] == [2, 4]
    write_json(tmp_path / "a" / "hierarchy.json", facts | {"format": 99})
    with pytest.raises(FreshetError, match="format 99"):
        Hierarchy.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("parents", "leaves", "rule"),
    [
        ([0, 1, 0], [0, 1, 2], "ordered by parent"),
        ([0, 0, 2], [0, 1, 2], "at least one child per node"),
        ([0, 0, 1], [0, 1, 1], "at least one passage per node"),
        ([0, 1], [0, 1, 2], "K_t centroids and K_t parents"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(
    parents: list[int], leaves: list[int], rule: str
) -> None:
    level_1, level_2 = np.eye(2, 4, dtype=np.float32), np.eye(3, 4, dtype=np.float32)
    with pytest.raises(FreshetError, match=rule):
        Hierarchy(
            (level_1, level_2),
            (np.zeros(2, np.int32), np.array(parents, np.int32)),
            np.array(leaves, np.int32),
        )
