"""Guards accuracy per hierarchy level: on a tree drawn by hand, with documents of several passages, against a loop."""

from __future__ import annotations

import numpy as np

from model_code.evaluation.level_accuracy import document_nodes, level_accuracy
from model_code.evaluation.metrics import evaluate_run
from model_code.hierarchy.tree import Hierarchy


def tree():
    """Root -> 0 (leaves 0, 1), 1 (leaves 2, 3); passages 0..7 lie two by two in the leaves."""
    unit = np.eye(4, dtype=np.float32)
    parents = (np.zeros(2, np.int32), np.array([0, 0, 1, 1], np.int32))
    return Hierarchy((unit[:2], unit), parents, np.array([0, 0, 1, 1, 2, 2, 3, 3], np.int32))


def test_each_level_by_hand():
    nodes = document_nodes(tree(), list("abcdefgh"))
    relevant = {"q": {"a": 1}}
    right = {first: level_accuracy({"q": [(first, 1.0)]}, relevant, nodes) for first in "abcd" + "e"}
    by_hand = {"a": (1, 1), "b": (1, 1), "c": (1, 0), "d": (1, 0), "e": (0, 0)}
    assert {first: (levels["level@1"]["q"], levels["level@2"]["q"]) for first, levels in right.items()} == by_hand


def test_only_the_first_document_and_any_relevant_one_count():
    nodes = document_nodes(tree(), list("abcdefgh"))
    run = {"q": [("e", 2.0), ("a", 1.0)]}
    assert level_accuracy(run, {"q": {"a": 1, "h": 1}}, nodes) == {"level@1": {"q": 1.0}, "level@2": {"q": 0.0}}


def test_a_document_is_wherever_its_passages_are():
    nodes = document_nodes(tree(), ["long", "b", "c", "d", "e", "long", "g", "h"])
    assert nodes["long"] == [{0, 1}, {0, 2}]
    right = {"level@1": {"q": 1.0}, "level@2": {"q": 1.0}}
    assert level_accuracy({"q": [("long", 1.0)]}, {"q": {"e": 1}}, nodes) == right


def test_nothing_retrieved_and_documents_outside_the_hierarchy_score_zero():
    nodes = document_nodes(tree(), list("abcdefgh"))
    run = {"new": [("unplaced", 1.0)], "empty": []}
    qrels = {"new": {"a": 1}, "empty": {"a": 1}, "absent": {"a": 1}, "unknown answer": {"unplaced": 1}}
    zero = dict.fromkeys(sorted(qrels), 0.0)
    assert level_accuracy(run | {"unknown answer": [("a", 1.0)]}, qrels, nodes) == {"level@1": zero, "level@2": zero}


def test_no_queries_still_name_the_levels():
    assert level_accuracy({}, {}, document_nodes(tree(), list("abcdefgh"))) == {"level@1": {}, "level@2": {}}


def test_accuracy_falls_from_level_to_level_down_to_hit_at_one():
    generator = np.random.default_rng(0)
    nodes = document_nodes(tree(), list("abcdefgh"))
    run = {f"q{i}": [(str(d), 1.0) for d in generator.permutation(list("abcdefgh"))] for i in range(50)}
    qrels = {query: {str(generator.choice(list("abcdefgh"))): 1} for query in run}
    levels = level_accuracy(run, qrels, nodes)
    hits = evaluate_run(run, qrels, ["hit@1"])["hit@1"]
    assert all(levels["level@1"][query] >= levels["level@2"][query] >= hits[query] for query in run)
    paths = {name: tree().path(i) for i, name in enumerate("abcdefgh")}
    for query, ranking in run.items():
        (answer,) = qrels[query]
        expected = [float(paths[ranking[0][0]][: t + 1] == paths[answer][: t + 1]) for t in range(2)]
        assert [levels["level@1"][query], levels["level@2"][query]] == expected
