"""Tests the rows of BM25 with known queries, which tables got after their systems were built."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import known_words
from experiments.composed import add_known_words, run
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.files import read_json, write_text

SETTINGS = """
corpus: {path: data, splits: {gate_share: 0.0}}
bm25: {language: null}
known_queries: {weight: 1.0, in_length: false}
retrievers: {hce: {}}
"""
# Two documents. The query of `rain` shares its word with a training query, not with the text.
TEXTS = {"rain": "drops fall on the roof", "snow": "flakes cover the roof tonight"}
QUERIES = {"t1": "umbrella weather", "q1": "umbrella", "q2": "flakes"}
TRAIN = {"t1": "rain"}
TEST = {"q1": "rain", "q2": "snow"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a data set in the form of BEIR and a settings file."""
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", TEXTS), ("queries", QUERIES)):
        rows = [json.dumps({"_id": key, "text": texts[key]}) for key in texts]
        write_text(data / f"{name}.jsonl", "\n".join(rows) + "\n")
    for split, qrels in (("train", TRAIN), ("test", TEST)):
        lines = [f"{query}\t{qrels[query]}\t1" for query in qrels]
        head = "query-id\tcorpus-id\tscore"
        write_text(data / "qrels" / f"{split}.tsv", "\n".join([head, *lines]) + "\n")
    write_text(tmp_path / "params.yaml", SETTINGS)
    return tmp_path


def measure(root: Path) -> dict[str, Any]:
    """Measure both kinds of BM25 on the data set."""
    settings = root / "params.yaml"
    return known_words.measure(known_words.open_from_settings(settings, root, root / "cache"))


def test_words_of_training_queries_find_their_document(root: Path) -> None:
    result = measure(root)

    assert result["systems"]["bm25"]["nDCG@10"]["value"] == 0.5
    assert result["systems"]["bm25_known"]["nDCG@10"]["value"] == 1.0


def test_gain_lies_on_documents_with_known_queries(root: Path) -> None:
    groups = measure(root)["groups"]

    assert groups["with_known"]["difference"]["difference"] == 1.0
    assert groups["without_known"]["difference"]["difference"] == 0.0


def test_corpus_is_built_once(root: Path) -> None:
    measure(root)
    file = root / "cache" / "corpus" / KNOWN_QUERIES
    built = file.stat().st_mtime_ns

    measure(root)

    assert file.stat().st_mtime_ns == built


def test_table_has_a_row_for_each_group(root: Path) -> None:
    lines = known_words.table(measure(root)).splitlines()

    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| all, 2",
        "| with known queries, 1",
        "| without known queries, 1",
    ]


def test_differences_are_paired() -> None:
    difference = known_words.mean_difference(np.array([0.1, 0.1, 0.1]))

    assert difference["low"] == difference["high"] == 0.1


@pytest.fixture
def build(root: Path) -> dict[str, Any]:
    """A result of a build without `bm25_known`, on the queries of `root`."""
    cell = {"value": 0.5, "low": 0.4, "high": 0.6}
    systems = {name: dict.fromkeys(run.OTHER_METRICS, cell) for name in ("bm25", "fused")}
    for cells in systems.values():
        cells["nDCG@10"] = cell
    return {"queries": 2, "seeds": {}, "systems": systems, "differences": [], "groups": {}}


def test_row_is_added_to_an_older_result(root: Path, build: dict[str, Any]) -> None:
    add_known_words.add_known_words(build, measure(root))

    assert build["systems"]["bm25_known"]["nDCG@10"]["value"] == 1.0
    assert build["differences"][-1]["difference"] == 0.5


def test_adding_twice_adds_one_row(root: Path, build: dict[str, Any]) -> None:
    measured = measure(root)
    add_known_words.add_known_words(build, measured)
    once = copy.deepcopy(build)

    add_known_words.add_known_words(build, measured)

    assert build == once


def test_row_of_other_queries_is_refused(root: Path, build: dict[str, Any]) -> None:
    build["queries"] = 3

    with pytest.raises(FreshetError, match="on 2 queries"):
        add_known_words.add_known_words(build, measure(root))


def test_row_of_another_corpus_is_refused(root: Path, build: dict[str, Any]) -> None:
    build["systems"]["bm25"]["nDCG@10"] = {"value": 0.6, "low": 0.4, "high": 0.8}

    with pytest.raises(FreshetError, match=r"bm25 has 0\.5000"):
        add_known_words.add_known_words(build, measure(root))


def test_difference_without_scores_has_no_interval() -> None:
    means = {"bm25": 0.5, "bm25_known": 0.75, "fused": 0.625}
    row = {"difference": 0.25, "low": 0.125, "high": 0.375}

    line = run.known_row("moss", "all", 8, means, {"bm25_known less bm25": row})

    assert line == "| moss | all, 8 | .500 | .750 | +.250 [+.125, +.375] | .625 | -.125 |"


def test_only_training_queries_are_known(root: Path) -> None:
    measure(root)
    corpus = load_corpus(root / "cache" / "corpus")

    known = known_words.training_queries(corpus)

    assert [query.text for query in known.queries] == ["umbrella weather"]


@pytest.mark.parametrize("page", known_words.PAGES)
def test_page_table_matches_saved_result(page: str) -> None:
    folder = known_words.HERE / page
    result = read_json(folder / known_words.RESULT)
    assert known_words.page_text(result) in (folder / "README.md").read_text()
