"""Guards an evaluation: its folder, and the sample of queries that it is made on."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from model_code.corpus.tables import Judgements
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import load_scores
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import (
    evaluate_system,
    own_document_queries,
    sample_queries,
    search_splits,
)
from model_code.files import read_json

SETTINGS = EvaluationSettings(metrics=("nDCG@10", "hit@1", "R@2"), depth=10)


def judgements(names):
    ids = [f"q{i:03}" for i in range(len(names))]
    queries = {query: f"text {name}" for query, name in zip(ids, names, strict=True)}
    return Judgements(
        queries, {query: {name: 1} for query, name in zip(ids, names, strict=True)}, "qrels"
    )


def always_a_then_b(texts, k):
    return [[("a", 1.0), ("b", 0.5)][:k] for _ in texts]


def evaluate(folder, dev="ab", test="abca", settings=SETTINGS):
    folder.mkdir()
    given = {"dev": judgements(dev), "test": judgements(test)}
    judged = {split: sample_queries(own, settings.max_queries) for split, own in given.items()}
    runs = search_splits(always_a_then_b, judged, settings.depth)
    return evaluate_system("dense", runs, judged, settings, folder)


def test_own_document_is_left_out_unless_judged():
    queries = {"a": "text a", "b": "text b", "q": "text q", "x": "text x"}
    qrels = {"a": {"b": 1}, "b": {"b": 1}, "q": {"a": 1}, "x": {"a": 1}}
    judged = Judgements(queries, qrels, "qrels")
    depths = []

    def search(texts, k):
        depths.append(k)
        return always_a_then_b(texts, k)

    (run,) = search_splits(search, {"test": judged}, 1, {"a", "b", "x"}).values()
    (whole,) = search_splits(search, {"test": judged}, 1, {"c"}).values()

    assert own_document_queries(judged, {"a", "b", "x"}) == {"a", "x"}
    assert run == {"a": [("b", 0.5)], "b": [("a", 1.0)], "q": [("a", 1.0)], "x": [("a", 1.0)]}
    assert whole["a"] == [("a", 1.0)]
    assert depths == [2, 1]


def test_evaluation_folder_is_complete(tmp_path):
    summary = evaluate(tmp_path / "dense")
    names = sorted(path.name for path in (tmp_path / "dense").iterdir())

    assert names == ["metrics.json", "run.dev.trec", "run.test.trec", "scores.parquet"]
    assert summary == read_json(tmp_path / "dense" / "metrics.json")
    assert summary["system"] == "dense"
    assert summary["dev"]["queries"] == 2

    test = {"queries": 4, "nDCG@10": 0.657732, "hit@1": 0.5, "R@2": 0.75}
    assert summary["test"] == pytest.approx(test, abs=1e-6)
    assert [document for document, _ in read_run(tmp_path / "dense" / "run.test.trec")["q003"]] == [
        "a",
        "b",
    ]

    table = pd.read_parquet(tmp_path / "dense" / "scores.parquet")
    assert list(table.columns) == ["query_id", "split", "metric", "value", "with_known"]
    assert len(table) == (2 + 4) * 3

    means = table[table["split"] == "test"].groupby("metric")["value"].mean()
    assert means["nDCG@10"] == pytest.approx(
        load_scores(tmp_path / "dense", "test").values["nDCG@10"].mean()
    )


def test_split_without_queries_is_no_error(tmp_path):
    summary = evaluate(tmp_path / "dense", dev="")

    assert summary["dev"] == {"queries": 0}
    assert (tmp_path / "dense" / "run.dev.trec").read_text() == ""
    assert load_scores(tmp_path / "dense", "dev").queries == 0
    assert load_scores(tmp_path / "dense", "test").queries == 4


@pytest.fixture
def hundred_queries():
    """A hundred judged queries, of which every second has an answer."""
    answers = {f"q{i:03}": [str(i)] for i in range(0, 100, 2)}
    return replace(judgements("abcd" * 25), answers=answers)


def test_larger_query_sample_holds_the_smaller(hundred_queries):
    small = sample_queries(hundred_queries, 10)
    large = sample_queries(hundred_queries, 30)

    assert len(small.queries) == 10
    assert len(large.queries) == 30
    assert set(small.queries) < set(large.queries)
    assert sample_queries(large, 10) == small


def test_query_sample_is_sorted(hundred_queries):
    sample = sample_queries(hundred_queries, 10)

    assert list(sample.queries) == sorted(sample.queries)
    assert sorted(sample.qrels) == list(sample.queries)


def test_query_sample_keeps_its_answers(hundred_queries):
    sample = sample_queries(hundred_queries, 10)

    expected = {}
    for query_id in sample.queries:
        if query_id in hundred_queries.answers:
            expected[query_id] = hundred_queries.answers[query_id]
    assert expected
    assert sample.answers == expected


def test_all_queries_are_kept_without_a_limit(hundred_queries):
    assert sample_queries(hundred_queries, None) is hundred_queries


def test_all_queries_are_kept_below_the_limit(hundred_queries):
    assert len(sample_queries(hundred_queries, 1000).queries) == 100


def test_query_sample_limits_all_splits(tmp_path):
    settings = EvaluationSettings(
        metrics=("hit@1",), main_metric="hit@1", depth=10, max_queries=1, variants=False
    )
    summary = evaluate(tmp_path / "dense", settings=settings)

    assert summary["dev"]["queries"] == 1
    assert summary["test"]["queries"] == 1


def test_groups_by_known_queries_are_reported(tmp_path):
    """Documents a and b answer test queries; training asks for b as well."""
    (tmp_path / "dense").mkdir()
    judged = {"test": replace(judgements("abba"), with_known=frozenset({"q001", "q002"}))}
    runs = search_splits(always_a_then_b, judged, SETTINGS.depth)

    summary = evaluate_system("dense", runs, judged, SETTINGS, tmp_path / "dense")

    groups = summary["groups"]["test"]
    assert groups["with_known"]["queries"] == 2
    assert groups["with_known"]["hit@1"] == 0.0
    assert groups["without_known"]["queries"] == 2
    assert groups["without_known"]["hit@1"] == 1.0
    assert summary["test"]["hit@1"] == 0.5
    scores = load_scores(tmp_path / "dense", "test")
    assert scores.with_known == {"q001", "q002"}


def test_groups_without_queries_are_left_out(tmp_path):
    summary = evaluate(tmp_path / "dense", dev="")

    assert summary["groups"]["dev"] == {}
    assert list(summary["groups"]["test"]) == ["without_known"]
