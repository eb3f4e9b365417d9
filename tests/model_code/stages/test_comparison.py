"""Guards the stage `comparison`: what it writes, from which split, the groups of queries, and equal bytes again."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.context import StageContext, leave_out
from model_code.corpus.tables import judged, load_corpus
from model_code.errors import FreshetError
from model_code.evaluation.comparison import compare_systems
from model_code.evaluation.plots import Picture
from model_code.evaluation.report import lead
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import evaluate_system, search_splits
from model_code.files import hash_path, read_json, write_json
from model_code.stages import comparison
from orchestration.cli.tables import results_table
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, TEXTS, write_corpus, write_pseudo_queries

SETTINGS = EvaluationSettings(bootstrap_samples=100, permutations=200)
NODES = {name: [{i // 12}, {i // 6}] for i, name in enumerate(DOCUMENTS)}
HISTORY = [{"step": 0, "nDCG@10": 0.4}, {"step": 5, "loss": 1.5, "contrastive": 1.2, "nDCG@10": 0.5}]


def imperfect(wrong):
    """A search that puts the answer at rank 1, but for every `wrong`-th query at rank 2."""
    answers = {" ".join(text.split()[3:]): i for i, text in enumerate(TEXTS.values())}

    def search(texts, k):
        places = [answers[text] for text in texts]
        pairs = [(i, (i + 1) % 48)[:: -1 if i % wrong == 0 else 1] for i in places]
        return [[(DOCUMENTS[i], 1.0 / rank) for rank, i in enumerate(pair, start=1)][:k] for pair in pairs]

    return search


def write_inputs(root, with_qrels=True, splits=("dev", "test")):
    corpus = load_corpus(write_corpus(root / "corpus", with_qrels))
    pseudo_queries = pd.read_parquet(write_pseudo_queries(root / "pseudo_queries") / "pseudo_queries.parquet")
    judgements = {split: judged(corpus, pseudo_queries, split) for split in ("dev", "test")}
    for split in set(judgements) - set(splits):
        judgements[split].queries.clear()
        judgements[split].qrels.clear()
    places = {
        "bm25": "baselines/bm25", "zero_shot": "baselines/zero_shot",
        "contrastive": "evaluations/contrastive", "hce": "evaluations/hce", "hce.rrf": "evaluations/hce/variants/rrf",
    }  # fmt: skip
    for wrong, (name, place) in enumerate(places.items(), start=2):
        folder = root / place
        folder.mkdir(parents=True)
        runs = search_splits(imperfect(wrong), judgements, SETTINGS.depth)
        evaluate_system(name, runs, judgements, NODES, SETTINGS, folder)
    for name in ("contrastive", "hce"):
        (root / "histories" / name).mkdir(parents=True)
        write_json(root / "histories" / name / "history.json", HISTORY)
    return {name: root / name for name in ("baselines", "evaluations", "histories", "corpus")}


def context(inputs, output):
    return StageContext(
        output,
        inputs,
        output,
        {"evaluation": SETTINGS, "retrievers": dict.fromkeys(("contrastive", "hce")), "fusions": {}, "seed": 1},
        output,
    )


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


def test_what_is_written(result):
    _, output = result
    names = {path.name for path in output.iterdir()}
    pictures = {f"{name}.png" for name in ("metrics", "differences", "recall", "levels", "training")}
    tables = {"recall.csv", "levels.csv", "training.csv"}
    assert names == pictures | tables | {"comparison.json", "comparison.md", "comparison.html", "metrics.json"}
    for name in pictures:
        assert f"({name})" in (output / "comparison.md").read_text()


def test_what_was_left_out_and_who_did_not_judge_is_said_before_all_numbers(tmp_path):
    inputs = write_inputs(tmp_path, with_qrels=False)
    for place in ("evaluations", "histories"):
        leave_out(tmp_path / place / "hce", "hce is not trained")
    report = run_stage(inputs, tmp_path / "output")
    content = read_json(tmp_path / "output" / "comparison.json")
    assert set(report["values"]) == {"bm25", "zero_shot", "contrastive"}
    assert content["left_out"] == {"hce": "hce is not trained"}
    for text in (results_table(content), lead(content)):
        assert text.lower().startswith("nobody has judged queries of this corpus")
        assert text.index("is not trained") < text.index("contrastive")


def test_of_few_queries_no_interval_pretends_to_know():
    values = pd.DataFrame({"hit@1": [1.0, 1.0]}, index=["q1", "q2"])
    systems = [SystemScores(name, "qrels", "test", values) for name in ("bm25", "hce")]
    compared = compare_systems(systems, SETTINGS, seed=0)
    cell, (difference,) = compared["systems"]["hce"]["hit@1"], compared["differences"]
    assert (cell["value"], cell["low"] < 0.05, cell["high"]) == (1, True, 1)
    assert difference["low"] < -0.95
    assert difference["high"] > 0.95


def test_the_json_is_the_contract_of_results(result):
    report, output = result
    content = read_json(output / "comparison.json")
    assert list(content["systems"]) == sorted(["bm25", "zero_shot", "contrastive", "hce", "hce.rrf"])
    for metrics in content["systems"].values():
        assert set(metrics) == {*SETTINGS.metrics, "level@1", "level@2"}
        for cell in metrics.values():
            assert set(cell) == {"value", "low", "high", "queries"}
            assert cell["low"] <= cell["value"] <= cell["high"]
            assert cell["queries"] == 48
    assert content["systems"]["hce"]["hit@1"]["value"] == pytest.approx(1 - 10 / 48, abs=1e-6)
    pairs = {(row["system"], row["reference"]) for row in content["differences"]}
    assert ("hce", "contrastive") in pairs
    assert len(pairs) == 6 + 2
    families = {row["family"]: row["reference"] for row in content["differences"] if row["system"] == "hce.rrf"}
    assert list(families) == ["variants"]
    assert (content["split"], content["source"], content["queries"]) == ("test", "qrels", 48)
    assert report["best"] == "hce.rrf"
    assert report["values"]["hce"] == content["systems"]["hce"]["nDCG@10"]["value"]


def test_what_the_best_won_and_lost_against_the_next_is_shown_with_both_rankings(result):
    _, output = result
    found = read_json(output / "comparison.json")["examples"]
    assert (found["system"], found["reference"]) == ("hce", "contrastive")
    assert (len(found["won"]), len(found["lost"])) == (9, 7), "where one of the two is right"
    for outcome, sign, first in (("won", 1, "hce"), ("lost", -1, "contrastive")):
        for row in found[outcome]:
            assert row["difference"] * sign > 0
            assert row["query"] in {" ".join(text.split()[3:]) for text in TEXTS.values()}
            assert [relevant for _, relevant in row["first"][first]] == [True, False]
            assert len({name for ranking in row["first"].values() for name, _ in ranking}) == 2
    page = (output / "comparison.html").read_text()
    assert "Queries that hce won against contrastive" in page
    assert page.count("✓ ") == 32 + 2, "in each ranking, and in the captions"


def test_unseen_queries_and_dev_stand_apart(result):
    content = read_json(result[1] / "comparison.json")
    assert {name: part["queries"] for name, part in content["groups"].items()} == {"seen": 24, "unseen": 24}
    assert (content["dev"]["split"], content["dev"]["queries"]) == ("dev", 6)
    assert "Unseen documents" in (result[1] / "comparison.html").read_text()


def test_variants_stand_in_the_tables_after_the_systems_and_have_no_lines(result):
    text = (result[1] / "comparison.md").read_text()
    first = text.partition("## Results")[2].partition("## ")[0]
    assert [line.split(" |")[0] for line in first.splitlines() if line.startswith("| ")][2:] == [
        "| bm25", "| zero_shot", "| contrastive", "| hce", "| hce.rrf"
    ]  # fmt: skip
    assert "## Variants: differences in nDCG@10" in text
    assert "hce.rrf − bm25" in text


def test_plot_tables(result):
    recall = pd.read_csv(result[1] / "recall.csv")
    assert list(recall.columns) == ["k", "bm25", "zero_shot", "contrastive", "hce"]
    assert recall.loc[recall["k"] == 5, "hce"].item() == 1.0
    training = pd.read_csv(result[1] / "training.csv")
    assert training["retriever"].tolist() == ["contrastive"] * 2 + ["hce"] * 2


def test_equal_inputs_give_equal_bytes(inputs, result, tmp_path):
    run_stage(inputs, tmp_path / "again")
    assert hash_path(tmp_path / "again") == hash_path(result[1])


def test_pseudo_queries_are_called_so_and_have_no_groups(tmp_path):
    content = comparison.compare(context(write_inputs(tmp_path, with_qrels=False), tmp_path))
    assert (content["source"], content["queries"], content["groups"]) == ("pseudo-queries", 10, {})


def test_without_test_queries_dev_is_reported(tmp_path):
    content = comparison.compare(context(write_inputs(tmp_path, splits=("dev",)), tmp_path))
    assert (content["split"], content["queries"], content["dev"]) == ("dev", 6, {})


def test_nothing_to_compare_is_told(tmp_path):
    inputs = write_inputs(tmp_path, splits=())
    with pytest.raises(FreshetError, match="no judged dev or test queries"):
        comparison.compare(context(inputs, tmp_path))


def test_without_retrievers_only_the_training_plot_is_left_out(inputs, monkeypatch, tmp_path):
    kept = {"retriever": [], "step": [], "loss": []}
    monkeypatch.setattr("model_code.evaluation.plots.draw", lambda name, *_: Picture(name, "", b"", ""))
    (tmp_path / "out").mkdir()
    baselines_only = {"evaluation": SETTINGS, "retrievers": {}, "fusions": {}, "seed": 1}
    comparison.run(StageContext(tmp_path, inputs, tmp_path / "out", baselines_only, tmp_path))
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"metrics", "differences", "recall", "levels"}
    assert pd.read_csv(tmp_path / "out" / "training.csv").to_dict("list") == kept


def test_dvc_shows_the_main_metric_of_each_system_and_all_of_the_best(result):
    shown = read_json(result[1] / "metrics.json")
    systems = read_json(result[1] / "comparison.json")["systems"]
    best = max(shown, key=lambda name: shown[name]["nDCG@10"])
    assert list(shown) == ["bm25", "contrastive", "hce", "zero_shot"]
    assert {name: len(values) for name, values in shown.items()} == dict.fromkeys(shown, 1) | {best: len(systems[best])}
    assert shown[best]["R@1"] == systems[best]["R@1"]["value"]
