"""Guards the names of nodes: what tells a node from its siblings, readable, the same whatever else
is the same.
"""

from __future__ import annotations

import numpy as np

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


def tree(leaves: list[int], parents: list[int]) -> Hierarchy:
    ends = np.eye(len(parents), dtype=np.float32)
    tops = ends[: max(parents) + 1]
    above = (np.zeros(len(tops), np.int32), np.array(parents, np.int32))
    return Hierarchy((tops, ends), above, np.array(leaves, np.int32))


def test_node_names_tell_siblings_apart():
    own = tree([0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 1])
    above, below = topic_names(own, TEXTS)
    assert set(above[0].split(", ")) == {"array", "sort", "axis"}
    assert "file" in above[1].split(", ")
    assert below[0] == above[0], "a node that is all of its parent keeps its name"
    assert below[1].split(", ")[0] == "csv"
    assert set(below[2].split(", ")[:2]) == {"document", "json"}
    assert "the" not in ", ".join(above + below).split(", ")
    assert topic_names(own, TEXTS) == [above, below]
    assert topic_names(own, ["!"] * 8) == [
        ["topic 1", "topic 2"],
        ["topic 1", "topic 2", "topic 3"],
    ]


def test_unspaced_scripts_are_named_by_pairs():
    chinese = ["高铁列车到达", "列车停止检票", "红烧肉加酱油", "酱油和冰糖烧肉"]
    assert topic_names(tree([0, 1], [0, 0]), ["排序算法", "排序文件"])[1] == ["算法", "文件"], (
        "not 序算"
    )
    first, second = topic_names(tree([0, 0, 1, 1], [0, 1]), chinese)[0]
    assert (first.split(", ")[0], set(second.split(", ")[:2])) == ("列车", {"烧肉", "酱油"})
    japanese = ["カードで切符を買います", "切符とカードです", "雨が降ります", "雨の気温です"]
    first, second = topic_names(tree([0, 0, 1, 1], [0, 1]), japanese)[0]
    assert (set(first.split(", ")), second) == ({"カード", "切符"}, "気温")


def test_rare_pair_does_not_outrank_common_one():
    texts = ["铁路。", "铁路。", "路。哐啷。", "路。", "路。", "路。", "路。", "路。"]
    first, _ = topic_names(tree([0, 0, 0, 0, 1, 1, 1, 1], [0, 1]), texts)[0]
    assert first == "铁路, 哐啷"


def test_words_of_much_of_the_corpus_name_nothing():
    common = "import array"
    texts = [f"{common} sluice gate weir" for _ in range(30)]
    texts += [f"{common} boat oar sail" for _ in range(30)]
    texts += [f"word{number} meadow cow" for number in range(60)]
    own = tree([0] * 30 + [0] * 30 + [1] * 60, [0, 1])

    (above, _) = topic_names(own, texts)

    assert not {"import", "array"} & set(above[0].split(", "))
