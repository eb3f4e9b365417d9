"""Test the arrays of a hierarchy: paths, passages of nodes, placement, files, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json
from model_code.hierarchy.tree import Hierarchy


@pytest.fixture
def tree() -> Hierarchy:
    """Return a tree of nine passages.

    Level 1 has the nodes 0 and 1. On level 2, nodes 0, 1 and 2 are below 0, and 3 is below 1.
    """
    level_2 = np.eye(4, dtype=np.float32)
    level_1 = np.array([[3, 3, 3, 0], [0, 0, 0, 1]], np.float32)
    level_1 /= np.linalg.norm(level_1, axis=1, keepdims=True)
    parents = (np.zeros(2, np.int32), np.array([0, 0, 0, 1], np.int32))
    return Hierarchy((level_1, level_2), parents, np.array([3, 0, 1, 2, 0, 1, 3, 3, 2], np.int32))


def test_paths_lead_to_the_leaf_node(tree: Hierarchy) -> None:
    assert tree.depth == 2
    assert tree.path(0) == (1, 3)
    assert tree.path(2) == (0, 1)


def test_path_is_a_row_of_all_paths(tree: Hierarchy) -> None:
    for passage, path in enumerate(tree.paths().tolist()):
        assert tree.path(passage) == tuple(path)


@pytest.mark.parametrize(("level", "nodes"), [(1, 2), (2, 4)])
def test_every_passage_is_under_one_node_per_level(tree: Hierarchy, level: int, nodes: int) -> None:
    passages_by_node = [tree.documents_under(level, node).tolist() for node in range(nodes)]

    assert sorted(sum(passages_by_node, [])) == list(range(9))
    assert [len(passages) for passages in passages_by_node] == tree.sizes(level).tolist()


@pytest.mark.parametrize(("level", "nodes"), [(1, 2), (2, 4)])
def test_passages_under_a_node_have_it_in_their_path(
    tree: Hierarchy, level: int, nodes: int
) -> None:
    for node in range(nodes):
        for passage in tree.documents_under(level, node):
            assert tree.path(passage)[level - 1] == node


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_new_vectors_go_below_the_nearest_leaf_node(tree: Hierarchy, chunk: int) -> None:
    vectors = np.array([[0.1, 0.9, 0, 0], [0, 0, 0.2, 5], [0.5, 0, 0.6, 0.59]], np.float32)

    assert tree.place(vectors, chunk).tolist() == [[0, 1], [1, 3], [0, 2]]


def test_no_vectors_have_no_paths(tree: Hierarchy) -> None:
    no_vectors = np.zeros((0, 4), np.float32)

    assert tree.place(no_vectors).shape == (0, 2)


def test_saved_tree_loads_unchanged(tree: Hierarchy, tmp_path: Path) -> None:
    tree.save(tmp_path)

    loaded = Hierarchy.load(tmp_path)

    arrays = [*tree.centroids, *tree.parents, tree.leaves]
    loaded_arrays = [*loaded.centroids, *loaded.parents, loaded.leaves]
    for array, loaded_array in zip(arrays, loaded_arrays, strict=True):
        np.testing.assert_array_equal(loaded_array, array)
        assert loaded_array.dtype == array.dtype


def test_loaded_tree_is_saved_with_the_same_bytes(tree: Hierarchy, tmp_path: Path) -> None:
    tree.save(tmp_path / "saved")

    Hierarchy.load(tmp_path / "saved").save(tmp_path / "saved again")

    assert hash_path(tmp_path / "saved again") == hash_path(tmp_path / "saved")


def test_saved_tree_lists_its_nodes_per_level(tree: Hierarchy, tmp_path: Path) -> None:
    tree.save(tmp_path)

    assert read_json(tmp_path / "hierarchy.json")["nodes"] == [2, 4]


def test_unknown_format_is_refused(tree: Hierarchy, tmp_path: Path) -> None:
    tree.save(tmp_path)
    fields = read_json(tmp_path / "hierarchy.json")
    fields["format"] = 99
    write_json(tmp_path / "hierarchy.json", fields)

    with pytest.raises(FreshetError, match="format 99"):
        Hierarchy.load(tmp_path)


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
    level_1 = np.eye(2, 4, dtype=np.float32)
    level_2 = np.eye(3, 4, dtype=np.float32)
    parents_by_level = (np.zeros(2, np.int32), np.array(parents, np.int32))

    with pytest.raises(FreshetError, match=rule):
        Hierarchy((level_1, level_2), parents_by_level, np.array(leaves, np.int32))
