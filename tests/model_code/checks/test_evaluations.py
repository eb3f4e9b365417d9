"""Guards the contracts of run files, evaluation folders and the comparison: each rule is broken
once.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace

import pandas as pd
import pytest

from model_code.checks.evaluations import check_run
from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.evaluation import plots
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.runs import write_run
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import evaluate_system, search_splits
from model_code.files import write_manifest
from model_code.retrieval.fused import Fusion
from model_code.stages import comparison
from model_code.stages.contract import check_contract
from tests.model_code.checks.damage import (
    assert_refused,
    copied,
    each,
    json_edited,
    json_with,
    removed,
    table_with,
    written,
)
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, write_corpus
from tests.model_code.stages.test_comparison import context, write_inputs

RUN = {"q 1": [("d1", 3.0), ("50 %", 3.0), ("d3", 1.0)], "q2": [("d2", 2.0)]}
QUERIES = ("q 1", "q2", "unanswered")
RUN_DOCUMENTS = ("d1", "d2", "d3", "50 %")


def check_lines(path, depth=3):
    check_run(path, "hce", QUERIES, RUN_DOCUMENTS, depth)


@pytest.fixture
def path(tmp_path):
    write_run(tmp_path / "run.test.trec", RUN, "hce")
    return tmp_path / "run.test.trec"


def test_complete_and_empty_runs_pass(path):
    check_lines(path)
    path.write_text("")
    check_lines(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("q2 Q0", "q3 Q0", "query_id breaks a judged query.*row 3: 'q3'"),
        ("Q0 d3 ", "Q0 d9 ", "document_id breaks a document of the corpus.*row 2: 'd9'"),
        ("Q0 d3 ", "Q0 d1 ", "query_id and document_id must be unique"),
        ("d3 3 1", "d3 2 1", "ranks of a query must be 1, 2, 3.*row 2: 'q 1 Q0 d3 2"),
        ("d2 1 2", "d2 0 2", "ranks of a query must be 1, 2, 3"),
        ("d3 3 1", "d3 3 3.5", "scores of a query must fall from rank to rank"),
        ("d3 3 1", "d3 3 2.99999976", "scores of a query must fall"),
        ("d1 1 3", "d1 1 inf", "score breaks finite"),
        ("1 hce", "1 dsi", "tag breaks the name of the system"),
    ],
)
def test_each_broken_rule_is_named_with_its_line(path, old, new, message):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(
        FreshetError,
        match=re.escape("run.test.trec breaks its contract in ") + f"[12] rows: {message}",
    ):
        check_lines(path)


@pytest.mark.parametrize(
    "line", ["q2 Q0 d2 1 2\n", "q2 Q0 d2 1 2 hce more\n", "q2 Q0 d2 one 2 hce\n"]
)
def test_a_line_of_another_form_is_refused(path, line):
    path.write_text(path.read_text() + line)
    with pytest.raises(
        FreshetError, match="run.test.trec is no TREC run of 6 fields a line: .*CSV"
    ):
        check_lines(path)


def test_missing_or_too_deep_runs_are_refused(path, tmp_path):
    with pytest.raises(FreshetError, match="run.dev.trec is missing"):
        check_lines(tmp_path / "run.dev.trec")
    with pytest.raises(FreshetError, match=r"rank breaks .*\(2\).*row 2"):
        check_lines(path, depth=2)


def test_a_hundred_thousand_lines_take_hardly_a_second(tmp_path):
    documents = [f"d{i}" for i in range(100)]
    run = {
        f"q{i}": [(name, 100.0 - rank) for rank, name in enumerate(documents)] for i in range(1000)
    }
    write_run(tmp_path / "run.test.trec", run, "hce")
    check_run(tmp_path / "run.test.trec", "hce", run.keys(), documents, 100)
    start = time.process_time()
    check_run(tmp_path / "run.test.trec", "hce", run.keys(), documents, 100)
    assert time.process_time() - start < 3


SETTINGS = EvaluationSettings(depth=100)
NAMES = {"": "hce", "variants/rrf": "hce.rrf"}
BASELINES = {
    "bm25": "bm25",
    "bm25_known": "bm25_known",
    "zero_shot": "zero_shot",
    "untrained": "untrained",
    "zero_shot/variants/rrf": "zero_shot.rrf",
}


def search(texts, k):
    return [
        [(name, 1.0 / rank) for rank, name in enumerate(DOCUMENTS[:3], start=1)][:k] for _ in texts
    ]


def write_build(build):
    for part in ("encoder", "index"):
        (build / part).mkdir(parents=True)
    Fusion({"zero_shot": 1.0, "bm25": 3.0}).save(build / "encoder")
    write_manifest(build / "index", 1, {})


def write(root, names, with_qrels=True):
    corpus = load_corpus(write_corpus(root / "corpus", with_qrels))
    judgements = {split: corpus.judgements(split) for split in ("dev", "gate", "test")}
    for place, name in names.items():
        (root / "output" / place).mkdir(parents=True, exist_ok=True)
        runs = search_splits(search, judgements, SETTINGS.depth)
        evaluate_system(name, runs, judgements, SETTINGS, root / "output" / place)
        if name in ("bm25", "bm25_known", "zero_shot", "untrained"):
            write_build(root / "output" / place / "build")
        if name == "zero_shot":
            write_build(root / "output" / "headline" / "build")
    settings = {"evaluation": SETTINGS, "pseudo_queries.generators": ("inverse_cloze",)}
    return StageContext(root, {"corpus": root / "corpus"}, root / "output", settings, root, "hce")


def compared(root):
    place = context(write_inputs(root), root / "output")
    place.output.mkdir()
    # Drawing takes seconds.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "systems_plot", lambda systems, metrics: b"png")
        comparison.run(place)
    return place


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    written = {
        "evaluate": write(root / "evaluate", NAMES),
        "baselines": write(root / "baselines", BASELINES),
    }
    return {**written, "comparison": compared(root / "comparison")}


def test_whole_outputs_pass_also_where_nobody_judges(places, tmp_path):
    unjudged = {
        "evaluate": write(tmp_path / "hce", NAMES, False),
        "baselines": write(tmp_path / "b", BASELINES, False),
    }
    for stage, place in (*places.items(), *unjudged.items()):
        check_contract(stage, place)


def test_perfect_ranking_passes_despite_rounding(places, tmp_path):
    relevant = {"a": 3, "b": 3, "c": 2, "d": 2}
    ranked = [(name, 1.0) for name in [*relevant, *"efghij"]]
    score = evaluate_run({"q": ranked}, {"q": relevant}, ["nDCG@10"])["nDCG@10"]["q"]
    assert score > 1
    perfect = copied(places["evaluate"], tmp_path)
    table_with(
        "scores.parquet",
        lambda table: table.assign(value=table["value"].mask(table["metric"] == "nDCG@10", score)),
    )(perfect.output)
    json_edited(
        "metrics.json",
        lambda value: [value[split].update({"nDCG@10": 1.0}) for split in ("dev", "test")],
    )(perfect.output)
    check_contract("evaluate", perfect)


def with_scores(edit):
    return table_with("scores.parquet", edit)


def with_means(edit):
    return json_edited("metrics.json", edit)


def first_value(value):
    return with_scores(lambda table: table.assign(value=[value, *table["value"][1:]]))


def in_comparison(edit):
    return json_edited("comparison.json", edit)


def cell(comparison, **changes):
    comparison["systems"]["hce"]["MAP"].update(changes)


BROKEN = {
    "evaluate": [
        (removed("metrics.json"), "must hold metrics.json: missing"),
        (written("scores.parquet"), "must hold scores.parquet: missing or empty"),
        (removed("run.dev.trec"), "run.dev.trec is missing"),
        (written("run.dev.trec", "q Q0 d 1 1 hce\n"), "run.dev.trec breaks its contract"),
        (
            written("variants/rrf/run.test.trec", "q\n"),
            "in the evaluation of hce.rrf: .*is no TREC run",
        ),
        (json_with("metrics.json", system="mlr"), "must be of 'hce', not of 'mlr'"),
        (
            json_with("variants/rrf/metrics.json", system="hce"),
            "hce.rrf: metrics.json must be of 'hce.rrf'",
        ),
        (with_means(lambda value: value["dev"].update(queries=7)), "dev: queries must be the mean"),
        (with_means(lambda value: value["test"].update(MAP=0.5)), "test: MAP must be the mean"),
        (
            with_means(lambda value: value["test"].pop("MAP")),
            "test: the metrics that were .*: 1 missing, such as 'MAP'",
        ),
        (first_value(1.5), "value breaks .*in_range.*1.5"),
        (first_value(float("nan")), "value breaks not_nullable"),
        (with_scores(lambda table: table[1:]), "(MAP|nDCG@10) of every query"),
        (with_scores(lambda table: table[table["query_id"] != table["query_id"][0]]), "1 missing"),
        (with_scores(lambda table: table[table["metric"] != "MAP"]), "MAP"),
        (with_scores(lambda table: pd.concat([table, table[:1]])), "must be unique"),
        (with_scores(lambda table: table.assign(split="train")), "split breaks isin"),
        (
            lambda folder: shutil.rmtree(folder / "variants" / "rrf"),
            "hce: variants/: 1 missing, such as 'rrf'",
        ),
    ],
    "baselines": [
        (
            lambda folder: shutil.rmtree(folder / "bm25"),
            "one folder per baseline: 1 missing, such as 'bm25'",
        ),
        (
            lambda folder: shutil.copytree(folder / "bm25", folder / "bm25_generated"),
            "1 unknown, such as 'bm25_gen",
        ),
        (
            written("bm25/run.test.trec", "q Q0 d 1 1 bm25\n"),
            "in the evaluation of bm25: the table run.test.trec",
        ),
        (written("bm25/variants/rrf/x", "x"), "bm25: variants/: 1 unknown"),
        (
            lambda folder: shutil.rmtree(folder / "zero_shot" / "variants"),
            "zero_shot: variants/: 1 missing",
        ),
        (
            lambda folder: shutil.rmtree(folder / "headline"),
            "build/encoder/ must be there",
        ),
    ],
    "comparison": [
        (written("comparison.png"), "must hold comparison.png: missing or empty"),
        (written("comparison.json", "{"), "it cannot be read: JSONDecodeError"),
        (json_with("metrics.json", hce={}), "metrics.json must hold the means"),
        (json_with("comparison.json", queries=0), "no system may be compared"),
        (
            in_comparison(lambda value: value["systems"].pop("hce.rrf")),
            "1 missing, such as 'hce.rrf'",
        ),
        (
            in_comparison(lambda value: value["groups"]["seen"]["systems"].pop("bm25")),
            "queries 'seen': .*'bm25'",
        ),
        (
            in_comparison(lambda value: value["systems"]["hce"].pop("nDCG@10")),
            "hce must have the main metric",
        ),
        (
            in_comparison(lambda value: cell(value, low=0.99, high=1.0)),
            "hce: MAP must lie within its interval",
        ),
    ],
}


@each(BROKEN)
def test_each_broken_rule_is_named(places, tmp_path, name, damage, message):
    assert_refused(name, places[name], tmp_path, damage, message)


@pytest.mark.parametrize(
    ("stage", "settings", "message"),
    [
        (
            "evaluate",
            {"evaluation": EvaluationSettings(variants=False)},
            "variants/: 1 unknown, such as 'rrf'",
        ),
        (
            "evaluate",
            {"evaluation": EvaluationSettings(metrics=("nDCG@10", "R@3"))},
            "dev: R@3 of every query",
        ),
        (
            "baselines",
            {"pseudo_queries.generators": ("sequence_to_sequence",)},
            "1 missing, such as 'bm25_generated'",
        ),
    ],
)
def test_evaluation_must_match_settings_exactly(places, stage, settings, message):
    with pytest.raises(FreshetError, match=message):
        check_contract(stage, replace(places[stage], settings=places[stage].settings | settings))
