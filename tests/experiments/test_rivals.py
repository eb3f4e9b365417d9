"""Tests the experiment about other libraries: each is trained by its own trainer and searches."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.rivals.run import known_words_table, make_task, result_table
from model_code.corpus.tables import Corpus
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

WORDS = ["oak", "moss", "fern", "trail", "owl", "bark", "root", "acorn"]


def make_corpus() -> Corpus:
    """Eight documents; the first word of each asks for it."""
    names = [f"d{number}" for number in range(len(WORDS))]
    texts = [f"{word} {WORDS[number - 1]}" for number, word in enumerate(WORDS)]
    documents = pd.DataFrame({"document_id": names, "title": "", "text": texts, "ordinal": 0})
    queries = [f"q{number}" for number in range(len(WORDS))]
    qrels = pd.DataFrame(
        {"query_id": queries, "document_id": names, "relevance": 1, "split": "train"}
    )
    return Corpus(documents, documents, pd.DataFrame({"query_id": queries, "text": WORDS}), qrels)


def test_pairs_are_those_of_the_training_qrels():
    task = make_task(make_corpus(), max_tokens=16)
    assert task.queries == WORDS
    assert task.positives[1] == "moss oak"
    assert task.ids[1] == "d1"


def test_bm25s_finds_the_word():
    from experiments.rivals.systems import bm25s_search

    search = bm25s_search(make_task(make_corpus(), max_tokens=16))
    (ranking,) = search(["acorns"], 5)
    assert {document for document, _ in ranking} == {"d7", "d0"}


@pytest.mark.parametrize("kind", ["dense", "sparse", "multi_vector"])
def test_each_library_trains_and_searches(tmp_path: Path, kind: str):
    from experiments.rivals.systems import TRAINERS, Budget, mine_triplets

    task = make_task(make_corpus(), max_tokens=16)
    encoder = make_tiny_encoder(tmp_path / "encoder", WORDS)
    base = encoder
    if kind == "sparse":
        base = make_tiny_model(tmp_path / "masked", "bert", WORDS, masked=True)
    triplets = mine_triplets(encoder, task)

    search = TRAINERS[kind](base, task, triplets, Budget(1, 4, 1e-4, 0), tmp_path / "run")

    rankings = search(["oak", "owl"], 3)
    assert [len(ranking) for ranking in rankings] == [3, 3]


def test_table_has_a_column_for_each_corpus():
    result = {
        "moss": {"bm25": {"test": {"nDCG@10": 0.5}}},
        "fern": {"bm25": {"test": {"nDCG@10": 0.25}}, "hce": {"test": {"nDCG@10": 0.75}}},
    }
    assert result_table(result).splitlines() == [
        "| system | moss | fern |",
        "|---|---|---|",
        "| bm25 | .500 | .250 |",
        "| hce |  | .750 |",
    ]


def test_known_words_follow_plain_bm25_in_the_table():
    cell = {"test": {"nDCG@10": 0.5}}
    result = {"moss": {"hce": cell, "bm25": cell, "bm25_known": cell}}

    rows = result_table(result).splitlines()[2:]

    assert [row.split(" | ")[0] for row in rows] == ["| bm25", "| bm25_known", "| hce"]


def test_gain_of_known_words_has_an_interval():
    difference = {"difference": 0.25, "low": -0.125, "high": 0.5, "p": 0.0625}
    result = {"moss": {"bm25_known": {"words": {"weight": 0.5}, "less_bm25": difference}}}

    row = known_words_table(result).splitlines()[-1]

    assert row == "| moss | 0.5 | +.250 [-.125, +.500] | 0.0625 |"
