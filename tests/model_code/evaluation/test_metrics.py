"""Test that each metric equals trec_eval's, on runs with ties and graded relevance."""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import pytest
import pytrec_eval

from model_code.errors import FreshetError, SettingsError
from model_code.evaluation.metrics import evaluate_run, look_up_gains, parse_metric
from model_code.evaluation.runs import read_run, write_run

OURS_TO_TREC = {
    "nDCG@1": "ndcg_cut_1",
    "nDCG@10": "ndcg_cut_10",
    "nDCG@100": "ndcg_cut_100",
    "R@1": "recall_1",
    "R@5": "recall_5",
    "R@10": "recall_10",
    "R@20": "recall_20",
    "R@100": "recall_100",
    "hit@1": "success_1",
    "hit@5": "success_5",
    "hit@10": "success_10",
    "MAP": "map",
}


def random_case(seed, queries=60, documents=150, depth=100):
    """Make rankings with many ties, short and missing rankings, and grades 0 to 3."""
    generator = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(documents)]
    run = {}
    qrels = {}
    for i in range(queries):
        judged_names = generator.choice(names, size=generator.integers(1, 40), replace=False)
        grades = {str(name): int(generator.integers(0, 4)) for name in judged_names}
        grades[str(judged_names[0])] = 1
        qrels[f"q{i}"] = grades

        size = int(generator.choice([0, 1, 5, 30, depth]))
        ranked_names = generator.choice(names, size=size, replace=False)
        scores = generator.integers(0, 6, size=size) / 7
        if size:
            run[f"q{i}"] = sort_hits(ranked_names, scores)
    return run, qrels


def sort_hits(names, scores):
    """Return hits by descending score, ties by id."""
    order = sorted(range(len(names)), key=lambda i: (-scores[i], str(names[i])))
    return [(str(names[i]), float(scores[i])) for i in order]


def trec_eval(run_path, qrels, measures):
    """Return the scores by query, from the rankings of a run file."""
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures)
    rankings = read_run(run_path)
    run = {}
    for query in qrels:
        run[query] = dict(rankings.get(query, [("nothing found", 0.0)]))
    return evaluator.evaluate(run)


@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_trec_eval(tmp_path, seed):
    run, qrels = random_case(seed)
    write_run(tmp_path / "run.trec", run, tag="random")
    measures = {"ndcg_cut.1,10,100", "recall.1,5,10,20,100", "success.1,5,10", "map"}

    scores = evaluate_run(run, qrels, list(OURS_TO_TREC))

    trec_scores = trec_eval(tmp_path / "run.trec", qrels, measures)
    for name, trec_name in OURS_TO_TREC.items():
        expected = {query: trec_scores[query][trec_name] for query in qrels}
        assert scores[name] == pytest.approx(expected, abs=5e-5), name


@pytest.mark.parametrize("seed", range(5))
def test_reciprocal_rank_equals_trec_eval_on_a_cut_run(tmp_path, seed):
    run, qrels = random_case(seed)
    cut_run = {query: ranking[:10] for query, ranking in run.items()}
    write_run(tmp_path / "cut.trec", cut_run, tag="random")

    scores = evaluate_run(run, qrels, ["MRR@10"])

    trec_scores = trec_eval(tmp_path / "cut.trec", qrels, {"recip_rank"})
    expected = {query: trec_scores[query]["recip_rank"] for query in qrels}
    assert scores["MRR@10"] == pytest.approx(expected, abs=5e-5)


def test_metrics_equal_their_formulas():
    run = {"q": [("a", 4.0), ("b", 3.0), ("c", 2.0), ("d", 1.0)]}
    qrels = {"q": {"b": 3, "d": 1, "elsewhere": 2}}

    scores = evaluate_run(run, qrels, ["nDCG@10", "R@2", "MRR@10", "MAP", "hit@1"])

    gain = 3 / math.log2(3) + 1 / math.log2(5)
    ideal_gain = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    assert scores["nDCG@10"]["q"] == pytest.approx(gain / ideal_gain)
    assert scores["R@2"]["q"] == pytest.approx(1 / 3)
    assert scores["MRR@10"]["q"] == pytest.approx(1 / 2)
    assert scores["MAP"]["q"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert scores["hit@1"]["q"] == 0.0


@pytest.mark.parametrize("metric", ["nDCG@10", "MAP", "hit@1"])
def test_query_without_a_ranking_scores_zero(metric):
    run = {"ranked": [("a", 1.0)]}
    qrels = {"ranked": {"a": 1}, "missing": {"a": 1}}

    scores = evaluate_run(run, qrels, [metric])

    assert scores[metric] == {"ranked": 1.0, "missing": 0.0}


def test_queries_without_judgements_have_no_scores():
    scores = evaluate_run({"unjudged": [("a", 1.0)]}, {}, ["MAP", "R@5"])

    assert scores == {"MAP": {}, "R@5": {}}


def test_only_judged_queries_have_scores():
    scores = evaluate_run({"b": [], "x": []}, {"b": {"a": 1}}, ["R@5"])

    assert list(scores["R@5"]) == ["b"]


def test_order_of_queries_and_judgements_does_not_matter():
    run, qrels = random_case(7)
    metrics = ["nDCG@10", "R@20", "MRR@10", "MAP", "hit@5"]
    reversed_run = dict(reversed(run.items()))
    reversed_qrels = {}
    for query, grades in reversed(qrels.items()):
        reversed_qrels[query] = dict(reversed(grades.items()))

    scores = evaluate_run(reversed_run, reversed_qrels, metrics)

    assert repr(scores) == repr(evaluate_run(run, qrels, metrics))


@pytest.mark.parametrize(("relevant", "score"), [("b", 1.0), ("a", 0.0)])
def test_equal_scores_keep_the_order_of_the_ranking(relevant, score):
    run = {"q": [("b", 1.0), ("a", 1.0)]}

    scores = evaluate_run(run, {"q": {relevant: 1}}, ["hit@1"])

    assert scores["hit@1"]["q"] == score


def test_document_ranked_twice_is_refused():
    run = {"q": [("a", 2.0), ("b", 1.5), ("a", 1.0)]}

    with pytest.raises(FreshetError, match="ranks document 'a' twice"):
        look_up_gains(run, {"q": {"a": 1}})


@pytest.mark.parametrize(
    "name", ["ndcg@10", "nDCG", "MAP@10", "R@0", "hit@", "R@-1", "P@5", "", "nDCG@10 "]
)
def test_unknown_metric_is_refused_with_the_notation(name):
    with pytest.raises(SettingsError, match="write nDCG@k"):
        parse_metric(name)


def test_six_thousand_queries_take_seconds():
    names = [f"d{i}" for i in range(1000)]
    run = {}
    qrels = {}
    for i in range(6000):
        run[f"q{i}"] = [(names[(i + j) % 1000], 1.0 - j / 100) for j in range(100)]
        qrels[f"q{i}"] = {names[(i * 7) % 1000]: 1, names[(i + 5) % 1000]: 2}

    start = time.process_time()
    evaluate_run(run, qrels, [*OURS_TO_TREC, "MRR@10"])

    assert time.process_time() - start < 6


def test_judged_bpref_and_rbp_of_a_ranking():
    run = {"q": [("a", 0.5), ("b", 0.5), ("c", 0.1), ("d", 0.0)]}
    qrels = {"q": {"a": 0, "b": 2, "d": 1, "e": 0}, "silent": {"a": 1}}

    scores = evaluate_run(run, qrels, ["judged@2", "judged@4", "bpref", "RBP"])

    assert scores["judged@2"] == {"q": 1.0, "silent": 0.0}
    assert scores["judged@4"]["q"] == 0.75
    # One of two non-relevant documents is above both relevant ones: 1/2 * 2 * (1 - 1/2).
    assert scores["bpref"]["q"] == pytest.approx(0.5)
    assert scores["RBP"]["q"] == pytest.approx(0.2 * (0.8 + 0.8**3))


@pytest.mark.parametrize("seed", range(2))
def test_bpref_equals_trec_eval(tmp_path, seed):
    run, qrels = random_case(seed)
    path = tmp_path / "run.trec"
    write_run(path, run, tag="system")

    ours = evaluate_run(run, qrels, ["bpref"])["bpref"]

    theirs = trec_eval(path, qrels, {"bpref"})
    for query, value in ours.items():
        assert value == pytest.approx(theirs[query]["bpref"]), query


def test_missing_ir_measures_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)

    with pytest.raises(FreshetError, match=r"bpref .* pip install -e '\.\[research\]'"):
        evaluate_run({"q": [("a", 1.0)]}, {"q": {"a": 1}}, ["bpref"])
