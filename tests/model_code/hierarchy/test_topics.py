"""Test topic names: they tell siblings apart, can be read, and are reproducible."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.hierarchy.topics import topic_names
from model_code.hierarchy.tree import Hierarchy

TEXTS = [
    "the sort of an array, sorted",
    "sort the array by its axis",
    "the array has an axis, sort it",
    "read the csv file",
    "write the csv file",
    "the csv file is closed",
    "parse a json document of the file",
    "the json document in a file",
]


def two_level_tree(leaves: list[int], parents: list[int]) -> Hierarchy:
    """Return a tree of two levels.

    Args:
        leaves: Leaf node of each passage.
        parents: Node of level 1 above each leaf node.
    """
    level_2 = np.eye(len(parents), dtype=np.float32)
    level_1 = level_2[: max(parents) + 1]
    root = np.zeros(len(level_1), np.int32)
    return Hierarchy(
        (level_1, level_2), (root, np.array(parents, np.int32)), np.array(leaves, np.int32)
    )


def words(topic: str) -> list[str]:
    return topic.split(", ")


@pytest.fixture
def tree() -> Hierarchy:
    """Return the hierarchy of `TEXTS`."""
    return two_level_tree([0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 1])


def test_node_names_tell_siblings_apart(tree: Hierarchy) -> None:
    level_1, level_2 = topic_names(tree, TEXTS)

    assert set(words(level_1[0])) == {"array", "sort", "axis"}
    assert "file" in words(level_1[1])
    assert words(level_2[1])[0] == "csv"
    assert set(words(level_2[2])[:2]) == {"document", "json"}


def test_only_child_has_the_name_of_its_parent(tree: Hierarchy) -> None:
    level_1, level_2 = topic_names(tree, TEXTS)

    assert level_2[0] == level_1[0]


def test_function_words_name_nothing(tree: Hierarchy) -> None:
    level_1, level_2 = topic_names(tree, TEXTS)

    assert "the" not in words(", ".join(level_1 + level_2))


def test_names_are_reproducible(tree: Hierarchy) -> None:
    assert topic_names(tree, TEXTS) == topic_names(tree, TEXTS)


def test_texts_without_words_are_numbered(tree: Hierarchy) -> None:
    level_1, level_2 = topic_names(tree, ["!"] * 8)

    assert level_1 == ["topic 1", "topic 2"]
    assert level_2 == ["topic 1", "topic 2", "topic 3"]


def test_chinese_words_do_not_cross_word_borders():
    tree = two_level_tree([0, 1], [0, 0])

    _, level_2 = topic_names(tree, ["排序算法", "排序文件"])

    # 序算 is a pair of characters, too.
    assert level_2 == ["算法", "文件"]


def test_chinese_is_named_by_pairs():
    texts = ["高铁列车到达", "列车停止检票", "红烧肉加酱油", "酱油和冰糖烧肉"]

    level_1, _ = topic_names(two_level_tree([0, 0, 1, 1], [0, 1]), texts)

    trains, cooking = level_1
    assert words(trains)[0] == "列车"
    assert set(words(cooking)[:2]) == {"烧肉", "酱油"}


def test_japanese_is_named_by_words():
    texts = ["カードで切符を買います", "切符とカードです", "雨が降ります", "雨の気温です"]

    level_1, _ = topic_names(two_level_tree([0, 0, 1, 1], [0, 1]), texts)

    tickets, weather = level_1
    assert set(words(tickets)) == {"カード", "切符"}
    assert weather == "気温"


def test_rare_pair_does_not_outrank_common_one():
    texts = ["铁路。", "铁路。", "路。哐啷。", "路。", "路。", "路。", "路。", "路。"]

    level_1, _ = topic_names(two_level_tree([0, 0, 0, 0, 1, 1, 1, 1], [0, 1]), texts)

    assert level_1[0] == "铁路, 哐啷"


def test_words_of_much_of_the_corpus_name_nothing():
    texts = ["import array sluice gate weir"] * 30
    texts += ["import array boat oar sail"] * 30
    texts += [f"word{number} meadow cow" for number in range(60)]
    leaves = [0] * 60 + [1] * 60

    level_1, _ = topic_names(two_level_tree(leaves, [0, 1]), texts)

    assert not {"import", "array"} & set(words(level_1[0]))


def test_a_name_that_fits_few_passages_is_hidden():
    common = [f"sluice gate weir{number}" for number in range(20)]
    mixed = [f"meadow{number} cow{number} hay{number}" for number in range(20)]

    level_1, _ = topic_names(two_level_tree([0] * 20 + [1] * 20, [0, 1]), common + mixed)

    assert {"gate", "sluice"} <= set(words(level_1[0]))
    assert level_1[1] == "topic 2"
