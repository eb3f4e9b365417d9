"""Guards that every metric is trec_eval's, to 4 decimals and more, on runs with ties and graded
relevance.
"""

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
    run, qrels = {}, {}
    for i in range(queries):
        judged = generator.choice(names, size=generator.integers(1, 40), replace=False)
        qrels[f"q{i}"] = {str(name): int(generator.integers(0, 4)) for name in judged} | {
            str(judged[0]): 1
        }
        size = int(generator.choice([0, 1, 5, 30, depth]))
        found = generator.choice(names, size=size, replace=False)
        scores = generator.integers(0, 6, size=size) / 7
        if size:
            hits = [(str(name), float(score)) for name, score in zip(found, scores, strict=True)]
            run[f"q{i}"] = sorted(hits, key=lambda hit: (-hit[1], hit[0]))
    return run, qrels


def trec_eval(run_path, qrels, measures):
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, measures)
    run = {query: dict(ranking) for query, ranking in read_run(run_path).items()}
    return evaluator.evaluate({query: run.get(query, {"nothing found": 0.0}) for query in qrels})


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_trec_eval_on_the_run_file(tmp_path, seed):
    run, qrels = random_case(seed)
    write_run(tmp_path / "run.trec", run, tag="random")
    measures = {"ndcg_cut.1,10,100", "recall.1,5,10,20,100", "success.1,5,10", "map"}
    theirs = trec_eval(tmp_path / "run.trec", qrels, measures)
    ours = evaluate_run(run, qrels, [*OURS_TO_TREC, "MRR@10"])
    for name, their_name in OURS_TO_TREC.items():
        assert ours[name] == pytest.approx(
            {query: theirs[query][their_name] for query in qrels}, abs=5e-5
        ), name
    write_run(
        tmp_path / "cut.trec", {query: ranking[:10] for query, ranking in run.items()}, tag="random"
    )
    cut = trec_eval(tmp_path / "cut.trec", qrels, {"recip_rank"})
    assert ours["MRR@10"] == pytest.approx(
        {query: cut[query]["recip_rank"] for query in qrels}, abs=5e-5
    )


def test_the_formulas_by_hand():
    run = {"q": [("a", 4.0), ("b", 3.0), ("c", 2.0), ("d", 1.0)]}
    qrels = {"q": {"b": 3, "d": 1, "elsewhere": 2}}
    scores = evaluate_run(run, qrels, ["nDCG@10", "R@2", "MRR@10", "MAP", "hit@1"])
    gain = 3 / math.log2(3) + 1 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    expected = {
        "nDCG@10": gain / ideal,
        "R@2": 1 / 3,
        "MRR@10": 1 / 2,
        "MAP": (1 / 2 + 2 / 4) / 3,
        "hit@1": 0.0,
    }
    assert {name: values["q"] for name, values in scores.items()} == pytest.approx(expected)


def test_query_without_a_ranking_scores_zero():
    scores = evaluate_run(
        {"found": [("a", 1.0)]}, {"found": {"a": 1}, "lost": {"a": 1}}, ["nDCG@10", "MAP", "hit@1"]
    )
    assert all(values == {"found": 1.0, "lost": 0.0} for values in scores.values())
    assert evaluate_run({"unjudged": [("a", 1.0)]}, {}, ["MAP", "R@5"]) == {"MAP": {}, "R@5": {}}
    assert list(evaluate_run({"b": [], "x": []}, {"b": {"a": 1}}, ["R@5"])["R@5"]) == ["b"]


def test_only_the_rank_order_counts():
    run, qrels = random_case(7)
    names = ["nDCG@10", "R@20", "MRR@10", "MAP", "hit@5"]
    backwards = {
        query: dict(reversed(relevant.items())) for query, relevant in reversed(qrels.items())
    }
    turned = evaluate_run(dict(reversed(run.items())), backwards, names)
    assert repr(turned) == repr(evaluate_run(run, qrels, names))
    tied = {"q": [("b", 1.0), ("a", 1.0)]}
    assert [evaluate_run(tied, {"q": {name: 1}}, ["hit@1"])["hit@1"]["q"] for name in "ba"] == [
        1.0,
        0.0,
    ]


def test_a_document_ranked_twice_is_refused():
    with pytest.raises(FreshetError, match="ranks document 'a' twice"):
        look_up_gains({"q": [("a", 2.0), ("b", 1.5), ("a", 1.0)]}, {"q": {"a": 1}})


@pytest.mark.parametrize(
    "name", ["ndcg@10", "nDCG", "MAP@10", "R@0", "hit@", "R@-1", "P@5", "", "nDCG@10 "]
)
def test_unknown_names_are_taught(name):
    with pytest.raises(SettingsError, match="write nDCG@k"):
        parse_metric(name)


def test_six_thousand_queries_take_seconds():
    names = [f"d{i}" for i in range(1000)]
    run = {
        f"q{i}": [(names[(i + j) % 1000], 1.0 - j / 100) for j in range(100)] for i in range(6000)
    }
    qrels = {f"q{i}": {names[(i * 7) % 1000]: 1, names[(i + 5) % 1000]: 2} for i in range(6000)}
    started = time.process_time()
    evaluate_run(run, qrels, [*OURS_TO_TREC, "MRR@10"])
    assert time.process_time() - started < 6


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
