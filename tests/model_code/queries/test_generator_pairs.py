"""Guards what a generator learns from: pairs of the training qrels, held out by document, and the right section."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from model_code.corpus.tables import Corpus
from model_code.errors import FreshetError
from model_code.queries.generator_pairs import IGNORED, GeneratorPair, generator_pairs
from tests.model_code.queries.toy import load, tokens


def make_corpus(qrels: list[tuple[str, str, str]]) -> Corpus:
    """Forty documents, d39 of which is new; `qrels` holds (query, document, split)."""
    ids = [f"d{i:02}" for i in range(40)]
    documents = pd.DataFrame({"document_id": ids, "text": [f"text of {i}" for i in ids], "part": "initial"})
    documents.loc[documents["document_id"] == "d39", "part"] = "new"
    judged = pd.DataFrame(qrels, columns=["query_id", "document_id", "split"]).assign(relevance=1)
    queries = judged.drop_duplicates("query_id").assign(text=lambda rows: "what is " + rows["query_id"])
    return Corpus(documents, documents, queries, judged)


def test_every_judgement_of_an_initial_document_is_a_pair():
    rows = [("q1", "d01", "train"), ("q1", "d02", "train"), ("q2", "d39", "train"), ("q3", "d03", "test")]
    pairs, held_out = generator_pairs(make_corpus(rows), 0.0, seed=0)
    assert pairs == [GeneratorPair(i, f"text of {i}", "what is q1") for i in ("d01", "d02")]
    assert held_out == []


def test_a_document_is_held_out_with_all_its_queries():
    rows = [(f"q{i}", f"d{i % 39:02}", "train") for i in range(78)] + [("t", "d03", "test")]
    pairs, held_out = generator_pairs(make_corpus(rows), 0.3, seed=0)
    assert len(pairs) + len(held_out) == 78
    assert 8 <= len(held_out) <= 40
    assert not {pair.document_id for pair in pairs} & {pair.document_id for pair in held_out}


@pytest.mark.parametrize("rows", [[], [("q", "d01", "train")], [("q", "d01", "test")]])
def test_a_corpus_without_training_qrels_is_refused(rows: list):
    """The second has no judged dev or test query either, so pseudo-queries would stand for all of its splits."""
    with pytest.raises(FreshetError, match="learns from training qrels.*training.base to null"):
        generator_pairs(make_corpus(rows), 0.1, seed=0)


@pytest.mark.parametrize("kind", ["warm_start", "t5"])
def test_of_a_long_document_the_section_with_the_querys_words_is_read(tmp_path: Path, kind: str):
    loaded = load(kind, tmp_path)
    reader = tokens(loaded)
    reader.section_tokens, reader.query_tokens = 6, 4
    long = " ".join(f"w{i}" for i in range(20))
    batch = reader.batch([GeneratorPair("a", long, "w9 w10"), GeneratorPair("b", "w1", "w2 w3 w4 w5 w6")])
    read = loaded[1].batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert {"w9", "w10"} & set(read[0].split())
    assert read[1] == "w1"
    assert batch["attention_mask"].sum(dim=1).tolist()[0] > batch["attention_mask"].sum(dim=1).tolist()[1]
    labels = [[token for token in row if token != IGNORED] for row in batch["labels"].tolist()]
    assert loaded[1].batch_decode(labels, skip_special_tokens=True)[0] == "w9 w10"
    assert all(len(row) <= 4 for row in labels)
    end = loaded[0].generation_config.eos_token_id
    assert all(row[-1] == end and row[0] != loaded[1].cls_token_id for row in labels)
