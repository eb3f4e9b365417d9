"""Guards the contracts of evaluation folders: of a retriever with variants, and of the baselines."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.contracts.registry import check
from model_code.corpus.tables import judged, load_corpus
from model_code.errors import FreshetError
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import evaluate_system, search_splits
from tests.model_code.contracts.damage import (
    assert_refused,
    copied,
    json_edited,
    json_with,
    removed,
    table_with,
    written,
)
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, write_corpus, write_pseudo_queries

SETTINGS = EvaluationSettings(depth=100)
NODES = {name: [{i // 12}, {i // 6}] for i, name in enumerate(DOCUMENTS)}
NAMES = {"": "hce", "variants/rrf": "hce.rrf", "variants/bm25_rerank": "hce.bm25_rerank"}
BASELINES = {
    "bm25": "bm25",
    "zero_shot": "zero_shot",
    "zero_shot/variants/rrf": "zero_shot.rrf",
    "zero_shot/variants/bm25_rerank": "zero_shot.bm25_rerank",
}


def search(texts, k):
    return [[(name, 1.0 / rank) for rank, name in enumerate(DOCUMENTS[:3], start=1)][:k] for _ in texts]


def write(root, names, with_qrels=True):
    corpus = load_corpus(write_corpus(root / "corpus", with_qrels))
    pseudo_queries = pd.read_parquet(write_pseudo_queries(root / "pseudo_queries") / "pseudo_queries.parquet")
    judgements = {split: judged(corpus, pseudo_queries, split) for split in ("dev", "test")}
    for place, name in names.items():
        (root / "output" / place).mkdir(parents=True, exist_ok=True)
        runs = search_splits(search, judgements, SETTINGS.depth)
        evaluate_system(name, runs, judgements, NODES, SETTINGS, root / "output" / place)
    inputs = {name: root / name for name in ("corpus", "pseudo_queries")}
    settings = {"evaluation": SETTINGS, "pseudo_queries.generators": ("short_cloze",)}
    return StageContext(root, inputs, root / "output", settings, root, "hce")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return write(tmp_path_factory.mktemp("evaluated"), NAMES)


@pytest.fixture(scope="module")
def baselines(tmp_path_factory):
    return write(tmp_path_factory.mktemp("baselines"), BASELINES)


@pytest.mark.parametrize("with_qrels", [True, False])
def test_whole_evaluations_pass_whoever_judges(tmp_path, with_qrels):
    check("evaluate", write(tmp_path / "hce", NAMES, with_qrels))
    check("baselines", write(tmp_path / "baselines", BASELINES, with_qrels))


def test_a_perfect_ranking_passes_though_its_sum_of_gains_is_rounded_otherwise_than_the_ideal(evaluated, tmp_path):
    relevant = {"a": 3, "b": 3, "c": 2, "d": 2}
    ranked = [(name, 1.0) for name in [*relevant, *"efghij"]]
    score = evaluate_run({"q": ranked}, {"q": relevant}, ["nDCG@10"])["nDCG@10"]["q"]
    assert score > 1
    perfect = copied(evaluated, tmp_path)
    path = perfect.output / "scores.parquet"
    scores = pd.read_parquet(path)
    scores.loc[scores["metric"] == "nDCG@10", "value"] = score
    scores.to_parquet(path, index=False)
    json_edited("metrics.json", lambda value: [value[split].update({"nDCG@10": 1.0}) for split in ("dev", "test")])(
        perfect.output
    )
    check("evaluate", perfect)


def first_value(value):
    return lambda table: table.assign(value=[value, *table["value"][1:]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("metrics.json"), "must hold metrics.json: missing"),
        (written("scores.parquet"), "must hold scores.parquet: missing or empty"),
        (removed("run.dev.trec"), "run.dev.trec is missing"),
        (written("run.dev.trec", "q Q0 d 1 1 hce\n"), "run.dev.trec breaks its contract"),
        (written("variants/rrf/run.test.trec", "q\n"), "in the evaluation of hce.rrf: it cannot be read"),
        (json_with("metrics.json", system="mlr"), "must be of 'hce', not of 'mlr'"),
        (json_with("variants/rrf/metrics.json", system="hce"), "hce.rrf: metrics.json must be of 'hce.rrf'"),
        (json_with("metrics.json", source="pseudo-queries"), "must state the source 'qrels'"),
        (json_edited("metrics.json", lambda value: value["dev"].update(queries=7)), "dev: 7 queries, judged: 6"),
        (json_edited("metrics.json", lambda value: value["test"].update(MAP=0.5)), "test: MAP must be the mean"),
        (
            json_edited("metrics.json", lambda value: value["test"].pop("MAP")),
            "test: the metrics that were scored: 1 missing, such as 'MAP'",
        ),
        (table_with("scores.parquet", first_value(1.5)), "value breaks .*in_range.*1.5"),
        (table_with("scores.parquet", first_value(float("nan"))), "value breaks not_nullable"),
        (table_with("scores.parquet", lambda table: table[1:]), "MAP|nDCG@10 must have one row per judged query"),
        (table_with("scores.parquet", lambda table: table[table["query_id"] != table["query_id"][0]]), "1 missing"),
        (table_with("scores.parquet", lambda table: table[table["metric"] != "MAP"]), "MAP"),
        (table_with("scores.parquet", lambda table: pd.concat([table, table[:1]])), "must be unique"),
        (table_with("scores.parquet", lambda table: table.assign(split="train")), "split breaks isin"),
        (lambda folder: shutil.rmtree(folder / "variants" / "rrf"), "hce: variants/ must hold rrf"),
    ],
)
def test_each_broken_rule_of_a_retriever_is_named(evaluated, tmp_path, damage, message):
    assert_refused("evaluate", evaluated, tmp_path, damage, message)


def test_without_variants_there_must_be_none(evaluated):
    settings = evaluated.settings | {"evaluation": EvaluationSettings(variants=False)}
    with pytest.raises(FreshetError, match="variants/ must not be there, but holds bm25_rerank, rrf"):
        check("evaluate", replace(evaluated, settings=settings))


def test_every_metric_of_the_settings_must_be_scored(evaluated):
    settings = evaluated.settings | {"evaluation": EvaluationSettings(metrics=("nDCG@10", "R@3"))}
    with pytest.raises(FreshetError, match="scores.parquet, dev, must have R@3"):
        check("evaluate", replace(evaluated, settings=settings))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "bm25"), "one folder per baseline: 1 missing, such as 'bm25'"),
        (lambda folder: shutil.copytree(folder / "bm25", folder / "bm25_generated"), "1 unknown, such as 'bm25_gen"),
        (written("bm25/run.test.trec", "q Q0 d 1 1 bm25\n"), "in the evaluation of bm25: the table run.test.trec"),
        (written("bm25/variants/rrf/x", "x"), "bm25: variants/ must not be there"),
        (lambda folder: shutil.rmtree(folder / "zero_shot" / "variants"), "zero_shot: variants/ must hold"),
    ],
)
def test_each_broken_rule_of_the_baselines_is_named(baselines, tmp_path, damage, message):
    assert_refused("baselines", baselines, tmp_path, damage, message)


def test_bm25_over_generated_queries_must_be_there_where_a_model_writes_some(baselines):
    settings = baselines.settings | {"pseudo_queries.generators": ("sequence_to_sequence",)}
    with pytest.raises(FreshetError, match="1 missing, such as 'bm25_generated'"):
        check("baselines", replace(baselines, settings=settings))
