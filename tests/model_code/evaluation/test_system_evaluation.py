"""Guards an evaluation: its folder, accuracy per level of a tree drawn by hand, and the variants of a retriever."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from model_code.corpus.tables import Judgements
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import load_scores
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import (
    document_nodes,
    evaluate_system,
    level_accuracy,
    retriever_runs,
    sample_queries,
    sampled,
    search_splits,
)
from model_code.files import hash_path, read_json
from model_code.hierarchy.tree import Hierarchy

SETTINGS = EvaluationSettings(metrics=("nDCG@10", "hit@1", "R@2"), depth=10)
NODES = {name: [{i // 2}, {i}] for i, name in enumerate("abcd")}


def judgements(names, source="qrels"):
    ids = [f"q{i:03}" for i in range(len(names))]
    queries = {query: f"text {name}" for query, name in zip(ids, names, strict=True)}
    return Judgements(queries, {query: {name: 1} for query, name in zip(ids, names, strict=True)}, source)


def always_a_then_b(texts, k):
    return [[("a", 1.0), ("b", 0.5)][:k] for _ in texts]


def evaluate(folder, dev="ab", test="abca", settings=SETTINGS):
    folder.mkdir()
    judged = sampled({"dev": judgements(dev), "test": judgements(test)}, settings)
    runs = search_splits(always_a_then_b, judged, settings.depth)
    return evaluate_system("dense", runs, judged, NODES, settings, folder)


def test_what_is_in_the_folder(tmp_path):
    summary = evaluate(tmp_path / "dense")
    names = sorted(path.name for path in (tmp_path / "dense").iterdir())
    assert names == ["metrics.json", "run.dev.trec", "run.test.trec", "scores.parquet"]
    assert summary == read_json(tmp_path / "dense" / "metrics.json")
    assert (summary["system"], summary["source"], summary["dev"]["queries"]) == ("dense", "qrels", 2)
    test = {"queries": 4, "nDCG@10": 0.657732, "hit@1": 0.5, "R@2": 0.75, "level@1": 0.75, "level@2": 0.5}
    assert summary["test"] == pytest.approx(test, abs=1e-6)
    assert [document for document, _ in read_run(tmp_path / "dense" / "run.test.trec")["q003"]] == ["a", "b"]


def test_scores_are_long_and_complete(tmp_path):
    evaluate(tmp_path / "dense")
    table = pd.read_parquet(tmp_path / "dense" / "scores.parquet")
    assert list(table.columns) == ["query_id", "split", "metric", "value"]
    assert len(table) == (2 + 4) * 5
    means = table[table["split"] == "test"].groupby("metric")["value"].mean()
    assert means["nDCG@10"] == pytest.approx(load_scores(tmp_path / "dense", "test").values["nDCG@10"].mean())


def test_an_empty_split_is_counted_and_no_error(tmp_path):
    summary = evaluate(tmp_path / "dense", dev="")
    assert summary["dev"] == {"queries": 0}
    assert (tmp_path / "dense" / "run.dev.trec").read_text() == ""
    assert load_scores(tmp_path / "dense", "dev").queries == 0
    assert load_scores(tmp_path / "dense", "test").queries == 4


def test_equal_evaluations_have_equal_bytes(tmp_path):
    evaluate(tmp_path / "one")
    evaluate(tmp_path / "two")
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")


def test_a_sample_is_fixed_and_grows_with_its_limit():
    judged = judgements("abcd" * 25)
    small, large = sample_queries(judged, 10), sample_queries(judged, 30)
    assert (len(small.queries), len(large.queries)) == (10, 30)
    assert set(small.queries) < set(large.queries)
    assert list(small.queries) == sorted(small.queries) == sorted(small.qrels)
    assert sample_queries(judged, None) is judged
    assert len(sample_queries(judged, 1000).queries) == 100


def test_a_sample_ignores_the_other_queries_names(tmp_path):
    judged = judgements("abcd" * 25)
    kept = sample_queries(judged, 50)
    again = sample_queries(kept, 10)
    assert again == sample_queries(judged, 10)


def test_the_sample_limits_both_splits(tmp_path):
    settings = EvaluationSettings(metrics=("hit@1",), main_metric="hit@1", depth=10, max_queries=1, variants=False)
    summary = evaluate(tmp_path / "dense", settings=settings)
    assert (summary["dev"]["queries"], summary["test"]["queries"]) == (1, 1)


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


VARIANTS = EvaluationSettings(metrics=("hit@1",), main_metric="hit@1", depth=3, fusion_constant=1)
JUDGED = {"dev": Judgements({}, {}, "qrels"), "test": Judgements({"q1": "x", "q2": "y"}, {}, "qrels")}
RUNS = {"dev": {}, "test": {"q1": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "q2": [("a", 1.0)]}}
BM25 = {"dev": {}, "test": {"q1": [("c", 9.0), ("d", 8.0), ("a", 7.0)], "q2": []}}


class Reversing:
    """Encodes a query as its text in capitals; finds a, b and c; re-ranks by names, backwards; has one variant."""

    def __init__(self):
        self.encoded = []

    def encode_queries(self, texts):
        assert texts, "nothing to encode in an empty split"
        self.encoded += texts
        return [text.upper() for text in texts]

    def find(self, queries, k):
        assert all(query.isupper() for query in queries)
        return [[("a", 3.0), ("b", 2.0), ("c", 1.0)][:k] if query == "X" else [("a", 1.0)] for query in queries]

    def rerank_encoded(self, queries, candidates):
        assert len(queries) == len(candidates)
        return [[(name, float(ord(name))) for name in sorted(names, reverse=True)] for names in candidates]

    def variants(self):
        return {"beta": lambda texts, k: [[("z", 1.0)] for _ in texts]}


def test_the_retrievers_own_come_first_then_both_hybrids_and_queries_are_encoded_once():
    retriever = Reversing()
    found = dict(retriever_runs(retriever, BM25, JUDGED, VARIANTS))
    assert retriever.encoded == ["x", "y"]
    assert list(found) == [None, "beta", "rrf", "bm25_rerank"]
    assert found[None] == RUNS
    assert found["beta"] == {"dev": {}, "test": {"q1": [("z", 1.0)], "q2": [("z", 1.0)]}}
    assert found["bm25_rerank"] == {"dev": {}, "test": {"q1": [("d", 100.0), ("c", 99.0), ("a", 97.0)], "q2": []}}
    assert found["rrf"]["test"] == {
        "q1": [("a", 1 / 2 + 1 / 4), ("c", 1 / 4 + 1 / 2), ("b", 1 / 3)],
        "q2": [("a", 1 / 2)],
    }


def test_without_variants_there_is_the_search_alone():
    found = dict(retriever_runs(Reversing(), {}, JUDGED, VARIANTS.replace(variants=False)))
    assert found == {None: RUNS}
