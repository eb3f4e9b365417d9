"""Guards the stage `comparison`: what it writes, from which split, the groups of queries, and equal
bytes again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pandas as pd
import pytest

from model_code.context import StageContext, mark_left_out
from model_code.corpus.tables import load_corpus
from model_code.evaluation.comparison import compare_systems
from model_code.evaluation.report import summary_sentence
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import evaluate_system, search_splits
from model_code.files import hash_path, read_json, write_json
from model_code.stages import comparison
from model_code.stages.contract import check_contract
from model_code.stages.system_comparison import compare
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, TEXTS, write_corpus

SETTINGS = EvaluationSettings(bootstrap_samples=100, permutations=200)


def imperfect(wrong):
    """Make a search that finds the answer at rank 1, or at rank 2 for every `wrong`-th query."""
    answers = {" ".join(text.split()[3:]): i for i, text in enumerate(TEXTS.values())}

    def search(texts, k):
        rankings = []
        for text in texts:
            answer = answers[text]
            other = (answer + 1) % 48
            ranked = [answer, other]
            if answer % wrong == 0:
                ranked = [other, answer]
            ranking = [(DOCUMENTS[number], 1.0 / rank) for rank, number in enumerate(ranked, 1)]
            rankings.append(ranking[:k])
        return rankings

    return search


def write_inputs(root, with_qrels=True, splits=("dev", "test")):
    corpus = load_corpus(write_corpus(root / "corpus", with_qrels))
    judgements = {}
    for split in ("dev", "test"):
        judged = corpus.judgements(split)
        with_known = frozenset(list(judged.queries)[:20])
        judgements[split] = replace(judged, with_known=with_known)
    for split in set(judgements) - set(splits):
        judgements[split].queries.clear()
        judgements[split].qrels.clear()
    places = {
        "bm25": "baselines/bm25",
        "zero_shot": "baselines/zero_shot",
        "contrastive": "evaluations/contrastive",
        "hce": "evaluations/hce",
        "hce.rrf": "evaluations/hce/variants/rrf",
    }
    for wrong, (name, place) in enumerate(places.items(), start=2):
        folder = root / place
        folder.mkdir(parents=True)
        runs = search_splits(imperfect(wrong), judgements, SETTINGS.depth)
        evaluate_system(name, runs, judgements, SETTINGS, folder)
    return {name: root / name for name in ("baselines", "evaluations", "corpus")}


def context(inputs, output):
    settings = {
        "evaluation": SETTINGS,
        "retrievers": dict.fromkeys(("contrastive", "hce")),
        "fusions": {},
        "seed": 1,
    }
    return StageContext(output, inputs, output, settings, output)


def run_stage(inputs, output):
    output.mkdir()
    return comparison.run(context(inputs, output))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def result(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("result") / "comparison"
    return run_stage(inputs, output), output


def test_what_is_written_and_the_same_bytes_again(inputs, result, tmp_path):
    names = {path.name for path in result[1].iterdir()}
    assert names == {"comparison.json", "comparison.png", "metrics.json"}

    run_stage(inputs, tmp_path / "again")
    assert hash_path(tmp_path / "again") == hash_path(result[1])


def test_comparison_without_judgements_reports_skipped_systems(tmp_path):
    inputs = write_inputs(tmp_path, with_qrels=False)
    mark_left_out(tmp_path / "evaluations" / "hce", "hce is not trained")
    report = run_stage(inputs, tmp_path / "output")
    content = read_json(tmp_path / "output" / "comparison.json")

    assert report["values"] == {}
    assert report["best"] is None
    assert content["systems"] == {}
    assert content["queries"] == 0
    assert content["left_out"] == {"hce": "hce is not trained"}
    assert summary_sentence(content).startswith("This corpus has no judged dev or test queries")
    assert read_json(tmp_path / "output" / "metrics.json") == {}


def test_intervals_of_few_queries_are_wide():
    values = pd.DataFrame({"hit@1": [1.0, 1.0]}, index=["q1", "q2"])
    systems = [SystemScores(name, "test", values) for name in ("bm25", "hce")]

    compared = compare_systems(systems, SETTINGS, seed=0)

    cell = compared["systems"]["hce"]["hit@1"]
    (difference,) = compared["differences"]
    assert cell["value"] == 1
    assert cell["low"] < 0.05
    assert cell["high"] == 1
    assert difference["low"] < -0.95
    assert difference["high"] > 0.95


def test_the_json_is_the_contract_of_results(result):
    report, output = result
    content = read_json(output / "comparison.json")

    assert list(content["systems"]) == sorted(
        ["bm25", "zero_shot", "contrastive", "hce", "hce.rrf"]
    )
    for metrics in content["systems"].values():
        assert set(metrics) == set(SETTINGS.metrics)
        for cell in metrics.values():
            assert set(cell) == {"value", "low", "high", "over", "trainings", "queries"}
            assert cell["low"] <= cell["value"] <= cell["high"]
            assert cell["queries"] == 48
    assert content["systems"]["hce"]["hit@1"]["value"] == pytest.approx(1 - 10 / 48, abs=1e-6)

    pairs = {(row["system"], row["reference"]) for row in content["differences"]}
    assert ("hce", "contrastive") in pairs
    assert len(pairs) == 6
    assert content["split"] == "test"
    assert content["queries"] == 48
    assert report["best"] == "hce.rrf"
    assert report["values"]["hce"] == content["systems"]["hce"]["nDCG@10"]["value"]

    groups = {name: part["queries"] for name, part in content["groups"].items()}
    # Queries for documents without known queries are a group of their own.
    assert groups == {"with_known": 20, "without_known": 28}


@pytest.fixture
def examples(result):
    """The queries that the comparison shows."""
    _, output = result
    return read_json(output / "comparison.json")["examples"]


def test_comparison_shows_the_best_system_and_its_reference(examples):
    assert examples["system"] == "hce"
    assert examples["reference"] == "contrastive"


def test_comparison_shows_queries_that_one_system_answers(examples):
    assert len(examples["won"]) == 9
    assert len(examples["lost"]) == 7


@pytest.mark.parametrize(
    ("outcome", "sign", "winner"), [("won", 1, "hce"), ("lost", -1, "contrastive")]
)
def test_shown_query_is_won_by_its_winner(examples, outcome, sign, winner):
    queries = {" ".join(text.split()[3:]) for text in TEXTS.values()}

    for row in examples[outcome]:
        is_relevant = [relevant for _, relevant in row["first"][winner]]
        shown_documents = set()
        for ranking in row["first"].values():
            shown_documents.update(name for name, _ in ranking)
        assert row["difference"] * sign > 0
        assert row["query"] in queries
        assert is_relevant == [True, False]
        assert len(shown_documents) == 2


def test_query_that_a_user_typed_is_shown_by_its_id(tmp_path):
    inputs = write_inputs(tmp_path)
    path = tmp_path / "corpus" / "qrels.parquet"
    pd.read_parquet(path).assign(origin="feedback").to_parquet(path)

    examples = compare(context(inputs, tmp_path))["examples"]

    shown = {row["query"] for outcome in ("won", "lost") for row in examples[outcome]}
    assert shown
    assert shown <= set(load_corpus(tmp_path / "corpus").queries["query_id"])


def test_trainings_with_other_seeds_share_a_row(tmp_path):
    seeded = context(write_inputs(tmp_path), tmp_path / "output")
    seeded.output.mkdir()
    for place, name in (("", "hce_seed1"), ("variants/rrf", "hce_seed1.rrf")):
        target = tmp_path / "evaluations" / "hce_seed1" / place
        shutil.copytree(tmp_path / "evaluations" / "contrastive", target, dirs_exist_ok=True)
        write_json(target / "metrics.json", {"system": name})
    retrievers = dict.fromkeys(("contrastive", "hce", "hce_seed1"))
    seeded = replace(seeded, settings={**seeded.settings, "retrievers": retrievers})
    comparison.run(seeded)

    check_contract("comparison", seeded)

    content = read_json(seeded.output / "comparison.json")
    assert content["seeds"] == {"hce": 2, "hce.rrf": 2}
    assert list(content["systems"]) == ["bm25", "contrastive", "hce", "hce.rrf", "zero_shot"]

    means = [1 - 10 / 48, 1 - 12 / 48]
    assert content["systems"]["hce"]["hit@1"]["value"] == pytest.approx(sum(means) / 2, abs=1e-6)


def test_examples_of_a_system_whose_trainings_all_have_a_suffix(tmp_path):
    seeded = context(write_inputs(tmp_path), tmp_path)
    for source, name in (("hce", "hce_seed0"), ("contrastive", "hce_seed1")):
        target = tmp_path / "evaluations" / name
        shutil.copytree(tmp_path / "evaluations" / source, target)
        shutil.rmtree(target / "variants", ignore_errors=True)
        write_json(target / "metrics.json", {"system": name})
    shutil.rmtree(tmp_path / "evaluations" / "hce")
    retrievers = dict.fromkeys(("contrastive", "hce_seed0", "hce_seed1"))
    seeded = replace(seeded, settings={**seeded.settings, "retrievers": retrievers})

    content = compare(seeded)

    assert content["examples"]["system"] == "hce"
    assert content["examples"]["won"]
    assert all(len(row["first"]["hce"]) == 2 for row in content["examples"]["won"])


def test_without_test_queries_dev_is_reported(tmp_path):
    content = compare(context(write_inputs(tmp_path, splits=("dev",)), tmp_path))

    assert content["split"] == "dev"
    assert content["queries"] == 6


def test_dvc_metrics_are_complete_for_best_system(result):
    shown = read_json(result[1] / "metrics.json")
    systems = read_json(result[1] / "comparison.json")["systems"]
    best = max(shown, key=lambda name: shown[name]["nDCG@10"])

    assert list(shown) == ["bm25", "contrastive", "hce", "zero_shot"]
    assert {name: len(values) for name, values in shown.items()} == {
        **dict.fromkeys(shown, 1),
        best: len(systems[best]),
    }
    assert shown[best]["R@1"] == systems[best]["R@1"]["value"]


def test_outside_run_is_a_row_with_all_tests(inputs, tmp_path):
    run = tmp_path / "outside.trec"
    lines = [f"test:{name} Q0 {name} 1 1.0 outside" for name in DOCUMENTS]
    run.write_text("\n".join(lines) + "\n")

    content = compare(context(inputs, tmp_path), {"outside": run})

    assert content["systems"]["outside"]["nDCG@10"]["value"] == 1.0
    references = {row["reference"] for row in content["differences"] if row["system"] == "outside"}
    assert references == {"bm25", "zero_shot", "contrastive"}
    assert all("outside" in group["systems"] for group in content["groups"].values())
    assert content["examples"]["system"] == "outside"
