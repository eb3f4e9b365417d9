"""Tests the experiment about the papers' own forms: its corpora, its rows, and its tables."""

from __future__ import annotations

import json
import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.papers import run
from experiments.papers.data import reduce_corpus
from experiments.papers.masked_model import masked_model
from experiments.papers.report import PartResults, result_tables, student_interval
from experiments.tables import END, START
from model_code.corpus.tables import Corpus
from model_code.files import read_json
from tests.tiny_encoder import make_tiny_encoder

WORDS = [
    "oak",
    "moss",
    "fern",
    "trail",
    "owl",
    "bark",
    "root",
    "canopy",
    "acorn",
    "stream",
    "lake",
    "stone",
]
SETTINGS = """
[encoder]
base = "{base}"
max_tokens = 16
precision = "float32"
device = "cpu"

[sizes]
documents = 10
train_queries = 6
dev_queries = 2
test_queries = 2

[corpora.forest]
path = "forest"
splits = {{gate_share = 0.0, dev_share = 0.3}}

[training]
supervision = "supervised"
min_judged_queries = 0
document_max_tokens = 16
query_max_tokens = 16
batch_size = 4
steps = 2
frozen_layers = "null"
negatives_per_query = 0

[parts.hce]
corpora = ["forest"]
seeds = [0]
control = "contrastive"
claim = "it helps"
training = {{log_every = 5}}

[parts.hce.retrievers]
contrastive = {{hierarchy_weight = 0.0}}
hce = {{hierarchy_weight = 1.0, centroid_learning_rate = 0.0}}
svdr = {{kind = "lexical", hierarchy_weight = 0.0, lexical = {{search = "full"}}}}
"""


def write_forest(folder: Path) -> None:
    """Twelve documents of three words. The first word of each asks for it."""
    (folder / "qrels").mkdir(parents=True)
    documents = []
    queries = []
    for number, word in enumerate(WORDS):
        text = f"{word} {WORDS[number - 1]} {WORDS[number - 2]}"
        documents.append(json.dumps({"_id": f"d{number}", "title": "", "text": text}))
        queries.append(json.dumps({"_id": f"q{number}", "text": f"the {word} {word}"}))
    (folder / "corpus.jsonl").write_text("\n".join(documents))
    (folder / "queries.jsonl").write_text("\n".join(queries))
    for split, numbers in (("train", range(9)), ("test", range(9, 12))):
        rows = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in numbers)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n")


def run_experiment(root: Path) -> dict[str, Any]:
    """Run the experiment in `root`, made on the first call, and return its results."""
    if not (root / "data").is_dir():
        write_forest(root / "data" / "forest")
        base = make_tiny_encoder(root / "base", WORDS)
        (root / "settings.toml").write_text(SETTINGS.format(base=base))
        (root / "README.md").write_text(f"# Title\n\n{START}\nnothing\n\n{END}")
    arguments = ["--data", root / "data", "--cache", root / "cache", "--output", root]
    arguments += ["--settings", root / "settings.toml"]
    run.main([str(argument) for argument in arguments])
    return read_json(root / run.RESULT)


def test_rows_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = run_experiment(tmp_path)
    page = (tmp_path / "README.md").read_text()
    monkeypatch.setattr(run.Experiment, "measure", lambda *_: pytest.fail("trained again"))

    again = run_experiment(tmp_path)

    assert again == result
    assert [key.split("/")[2] for key in result["rows"]] == ["contrastive", "hce", "svdr"]
    row = result["rows"]["hce/forest/hce/0"]
    assert row["steps"] == 2
    assert "hierarchy_1" in row["first_losses"]
    assert result["references"]["forest"]["documents"] == 10
    settings = tomllib.loads((tmp_path / "settings.toml").read_text())
    assert result_tables(settings, result) in page
    assert ", one training |" in page
    assert "| forest | svdr.beta | 1 |" in page
    assert not list((tmp_path / "cache" / "rows").iterdir())


def test_other_settings_are_another_row(tmp_path: Path):
    settings = tomllib.loads(SETTINGS.format(base="base"))
    experiment = run.Experiment(settings, tmp_path, tmp_path)
    row = run.Row("hce", "forest", "hce", 0)
    result = {"rows": {row.key: {"settings": experiment.row_settings(row)}}}
    assert experiment.is_measured(row, result)

    changed = tomllib.loads(SETTINGS.format(base="base"))
    changed["parts"]["hce"]["retrievers"]["hce"]["hierarchy_weight"] = 0.5

    assert not run.Experiment(changed, tmp_path, tmp_path).is_measured(row, result)


def test_minutes_count_the_rows_of_their_part():
    result = {"rows": {"hce/a/b/0": {"cpu_seconds": 50.0}, "svdr/a/b/0": {"cpu_seconds": 9.0}}}

    assert run.seconds_spent(result, "hce") == 50.0


def test_seeds_come_one_after_the_other():
    part = {"seeds": [0, 1], "corpora": ["a", "b"], "retrievers": {"x": {}}}
    rows = [(row.seed, row.corpus) for row in run.rows_of("hce", part)]

    assert rows == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_reduced_corpora_keep_judged_documents():
    names = [f"d{number}" for number in range(8)]
    documents = pd.DataFrame({"document_id": names, "title": "", "text": "a b"})
    queries = pd.DataFrame({"query_id": ["q1", "q2", "q3"], "text": ["x", "y", "z"]})
    qrels = pd.DataFrame(
        {
            "query_id": ["q1", "q2", "q3"],
            "document_id": ["d1", "d5", "d7"],
            "relevance": 1,
            "split": ["train", "dev", "test"],
        }
    )
    corpus = Corpus(documents, documents.assign(ordinal=0), queries, qrels)
    sizes = {"documents": 4, "train_queries": 1, "dev_queries": 1, "test_queries": 0}

    reduced = reduce_corpus(corpus, sizes)

    assert len(reduced.documents) == 4
    assert len(reduced.passages) == 4
    assert {"d1", "d5", "d7"} <= set(reduced.documents["document_id"])
    assert set(reduced.queries["query_id"]) == {"q1", "q2"}
    assert set(reduced.qrels["query_id"]) == {"q1", "q2"}


def test_model_is_read_from_the_wheel(tmp_path: Path):
    settings = {"package": "p", "version": "1", "folder": "a/b", "files": ["config.json"]}
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "p-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a/b/config.json", "{}")
        wheel.writestr("a/code.py", "")

    folder = masked_model(settings, tmp_path)
    shutil.rmtree(tmp_path / "wheels")

    assert masked_model(settings, tmp_path) == folder
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def make_part() -> PartResults:
    """Two corpora, three seeds; `slow` is better by .01, .02 and .03 on both."""
    settings = {"seeds": [0, 1, 2], "corpora": ["a", "b"], "control": "plain", "claim": ""}
    settings["retrievers"] = {"plain": {}, "slow": {}}
    rows = {}
    for corpus in settings["corpora"]:
        for seed in settings["seeds"]:
            for name, value in (("plain", 0.5), ("slow", 0.51 + 0.01 * seed)):
                rows[f"{corpus}/{name}/{seed}"] = {
                    "dev": {"nDCG@10": value},
                    "test": {"nDCG@10": value, "hit@1": 0.3},
                }
    return PartResults(settings, rows)


def test_differences_are_paired_by_seed():
    part = make_part()

    assert part.differences("a", "slow") == pytest.approx([0.01, 0.02, 0.03])
    assert part.mean_differences("slow") == pytest.approx([0.01, 0.02, 0.03])
    assert part.preferred() == "slow"


def test_dev_prefers_nothing_before_all_rows_are_there():
    part = make_part()
    del part.rows["b/plain/2"]

    assert part.preferred() is None
    assert part.mean_differences("slow") == pytest.approx([0.01, 0.02])


def test_two_seeds_give_no_interval():
    assert student_interval([0.1, 0.2]) is None


def test_page_tables_match_saved_results():
    file = run.HERE / run.RESULT
    if not file.is_file():
        pytest.skip("no run has been recorded yet")
    settings = tomllib.loads(run.SETTINGS.read_text())

    assert result_tables(settings, read_json(file)) in (run.HERE / "README.md").read_text()


def test_shipped_settings_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = tomllib.loads(run.SETTINGS.read_text())
    monkeypatch.setattr(run, "masked_model", lambda *_: tmp_path)
    experiment = run.Experiment(settings, tmp_path, tmp_path)
    for part, part_settings in settings["parts"].items():
        assert part_settings["control"] in part_settings["retrievers"]
        for row in run.rows_of(part, part_settings):
            experiment.stage_settings(row)
