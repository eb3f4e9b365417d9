"""Tests of the contracts of run files, evaluation folders and the comparison.

Each rule is broken once.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

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
    column_with,
    copied,
    each,
    first_row_removed,
    first_row_repeated,
    folder_copied,
    folder_removed,
    json_item_removed,
    json_item_with,
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
    """Check a run file of RUN."""
    check_run(path, "hce", QUERIES, RUN_DOCUMENTS, depth)


@pytest.fixture
def path(tmp_path):
    """A run file of RUN."""
    write_run(tmp_path / "run.test.trec", RUN, "hce")
    return tmp_path / "run.test.trec"


def test_complete_run_passes(path):
    check_lines(path)


def test_empty_run_passes(path):
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
def test_broken_rule_of_a_run_is_named_with_its_line(path, old, new, message):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))

    beginning = re.escape("run.test.trec breaks its contract in ")
    with pytest.raises(FreshetError, match=f"{beginning}[12] rows: {message}"):
        check_lines(path)


@pytest.mark.parametrize(
    "line", ["q2 Q0 d2 1 2\n", "q2 Q0 d2 1 2 hce more\n", "q2 Q0 d2 one 2 hce\n"]
)
def test_line_of_another_form_is_refused(path, line):
    path.write_text(path.read_text() + line)

    with pytest.raises(
        FreshetError, match="run.test.trec is no TREC run of 6 fields a line: .*CSV"
    ):
        check_lines(path)


def test_missing_run_is_refused(tmp_path):
    with pytest.raises(FreshetError, match="run.dev.trec is missing"):
        check_lines(tmp_path / "run.dev.trec")


def test_too_deep_run_is_refused(path):
    with pytest.raises(FreshetError, match=r"rank breaks .*\(2\).*row 2"):
        check_lines(path, depth=2)


def test_hundred_thousand_lines_are_checked_in_seconds(tmp_path):
    path = tmp_path / "run.test.trec"
    documents = [f"d{i}" for i in range(100)]
    ranking = [(name, 100.0 - rank) for rank, name in enumerate(documents)]
    run = {f"q{i}": ranking for i in range(1000)}
    write_run(path, run, "hce")
    # The first check imports what it needs.
    check_run(path, "hce", run.keys(), documents, 100)

    start = time.process_time()
    check_run(path, "hce", run.keys(), documents, 100)
    seconds = time.process_time() - start

    assert seconds < 3


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
    """Return the same three documents for each text."""
    ranking = [(name, 1.0 / rank) for rank, name in enumerate(DOCUMENTS[:3], start=1)]
    return [ranking[:k] for _ in texts]


def write_build(build):
    """Write the build of a baseline."""
    for part in ("encoder", "index"):
        (build / part).mkdir(parents=True)
    Fusion({"zero_shot": 1.0, "bm25": 3.0}).save(build / "encoder")
    write_manifest(build / "index", 1, {})


def write(root, names, with_qrels=True):
    """Evaluate systems in the folders `names`, and return the context of the stage."""
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


def draw_nothing(systems, metrics):
    """Stand in for drawing a plot."""
    return b"png"


def compared(root):
    """Run the stage `comparison`."""
    place = context(write_inputs(root), root / "output")
    place.output.mkdir()
    # Drawing takes seconds.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "systems_plot", draw_nothing)
        comparison.run(place)
    return place


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The contexts of three stages that have run, by name."""
    root = tmp_path_factory.mktemp("places")
    written = {
        "evaluate": write(root / "evaluate", NAMES),
        "baselines": write(root / "baselines", BASELINES),
    }
    return {**written, "comparison": compared(root / "comparison")}


@pytest.mark.parametrize("stage", ["evaluate", "baselines", "comparison"])
def test_whole_output_passes(places, stage):
    check_contract(stage, places[stage])


@pytest.mark.parametrize(("stage", "names"), [("evaluate", NAMES), ("baselines", BASELINES)])
def test_whole_output_without_judgements_passes(tmp_path, stage, names):
    check_contract(stage, write(tmp_path, names, with_qrels=False))


def test_perfect_ranking_passes_despite_rounding(places, tmp_path):
    relevant = {"a": 3, "b": 3, "c": 2, "d": 2}
    ranking = [(name, 1.0) for name in [*relevant, *"efghij"]]
    score = evaluate_run({"q": ranking}, {"q": relevant}, ["nDCG@10"])["nDCG@10"]["q"]
    assert score > 1

    def set_scores(table):
        is_ndcg = table["metric"] == "nDCG@10"
        return table.assign(value=table["value"].mask(is_ndcg, score))

    perfect = copied(places["evaluate"], tmp_path)
    scores_with(set_scores)(perfect.output)
    json_item_with("metrics.json", ["dev"], **{"nDCG@10": 1.0})(perfect.output)
    json_item_with("metrics.json", ["test"], **{"nDCG@10": 1.0})(perfect.output)

    check_contract("evaluate", perfect)


def without_first_query(table):
    """Leave out the scores of the first query."""
    return table[table["query_id"] != table["query_id"][0]]


def without_map(table):
    """Leave out the scores of MAP."""
    return table[table["metric"] != "MAP"]


def all_train(table):
    """Let all scores be of train queries."""
    return table.assign(split="train")


def scores_with(edit):
    """Edit the table of scores."""
    return table_with("scores.parquet", edit)


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
        (
            json_item_with("metrics.json", ["dev"], queries=7),
            "dev: queries must be the mean",
        ),
        (json_item_with("metrics.json", ["test"], MAP=0.5), "test: MAP must be the mean"),
        (
            json_item_removed("metrics.json", "test", "MAP"),
            "test: the metrics that were .*: 1 missing, such as 'MAP'",
        ),
        (column_with("scores.parquet", "value", 1.5), "value breaks .*in_range.*1.5"),
        (column_with("scores.parquet", "value", float("nan")), "value breaks not_nullable"),
        (scores_with(first_row_removed), "(MAP|nDCG@10) of every query"),
        (scores_with(without_first_query), "1 missing"),
        (scores_with(without_map), "MAP"),
        (scores_with(first_row_repeated), "must be unique"),
        (scores_with(all_train), "split breaks isin"),
        (
            folder_removed("variants/rrf"),
            "hce: variants/: 1 missing, such as 'rrf'",
        ),
    ],
    "baselines": [
        (
            folder_removed("bm25"),
            "one folder per baseline: 1 missing, such as 'bm25'",
        ),
        (
            folder_copied("bm25", "bm25_generated"),
            "1 unknown, such as 'bm25_gen",
        ),
        (
            written("bm25/run.test.trec", "q Q0 d 1 1 bm25\n"),
            "in the evaluation of bm25: the table run.test.trec",
        ),
        (written("bm25/variants/rrf/x", "x"), "bm25: variants/: 1 unknown"),
        (
            folder_removed("zero_shot/variants"),
            "zero_shot: variants/: 1 missing",
        ),
        (
            folder_removed("headline"),
            "build/encoder/ must be there",
        ),
    ],
    "comparison": [
        (written("comparison.png"), "must hold comparison.png: missing or empty"),
        (written("comparison.json", "{"), "it cannot be read: JSONDecodeError"),
        (json_with("metrics.json", hce={}), "metrics.json must hold the means"),
        (json_with("comparison.json", queries=0), "no system may be compared"),
        (
            json_item_removed("comparison.json", "systems", "hce.rrf"),
            "1 missing, such as 'hce.rrf'",
        ),
        (
            json_item_removed("comparison.json", "groups", "with_known", "systems", "bm25"),
            "queries 'with_known': .*'bm25'",
        ),
        (
            json_item_removed("comparison.json", "systems", "hce", "nDCG@10"),
            "hce must have the main metric",
        ),
        (
            json_item_with("comparison.json", ["systems", "hce", "MAP"], low=0.99, high=1.0),
            "hce: MAP must lie within its interval",
        ),
    ],
}


@each(BROKEN)
def test_broken_rule_is_named(places, tmp_path, name, damage, message):
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
    place = places[stage]
    other_settings = {**place.settings, **settings}

    with pytest.raises(FreshetError, match=message):
        check_contract(stage, replace(place, settings=other_settings))
