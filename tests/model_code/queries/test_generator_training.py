"""Guards training of a query generator: pairs of the training qrels, resumed bit for bit, the best
step kept.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from model_code.corpus.tables import Corpus
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.queries.generator_training import IGNORED, METRIC, GeneratorPair, generator_pairs
from model_code.queries.sequence_to_sequence import Loaded, SequenceToSequence, save_sequence_model
from model_code.queries.settings import SequenceToSequenceSettings
from model_code.retrieval.bm25_index import Bm25Index
from tests.model_code.queries.toy import (
    DOCUMENTS,
    PAIRS,
    QUERY_TOKENS,
    SECTION_TOKENS,
    load,
    make_trainer,
    tokens,
)
from tests.model_code.training.killing import kill_at


def make_corpus(qrels: list[tuple[str, str, str]]) -> Corpus:
    """Forty documents; `qrels` holds (query, document, split)."""
    ids = [f"d{i:02}" for i in range(40)]
    documents = pd.DataFrame({"document_id": ids, "text": [f"text of {i}" for i in ids]})
    judged = pd.DataFrame(qrels, columns=["query_id", "document_id", "split"]).assign(relevance=1)
    queries = judged.drop_duplicates("query_id").assign(
        text=lambda rows: "what is " + rows["query_id"]
    )
    return Corpus(documents, documents, queries, judged)


def test_every_training_judgement_is_a_pair():
    rows = [("q1", "d01", "train"), ("q1", "d02", "train"), ("q3", "d03", "test")]
    pairs, held_out = generator_pairs(make_corpus(rows), 0.0, seed=0)

    assert pairs == [GeneratorPair(i, f"text of {i}", "what is q1") for i in ("d01", "d02")]
    assert held_out == []


def test_documents_are_held_out_with_their_queries():
    rows = [(f"q{i}", f"d{i % 39:02}", "train") for i in range(78)] + [("t", "d03", "test")]
    pairs, held_out = generator_pairs(make_corpus(rows), 0.3, seed=0)

    assert len(pairs) + len(held_out) == 78
    assert 8 <= len(held_out) <= 40
    assert not {pair.document_id for pair in pairs} & {pair.document_id for pair in held_out}


@pytest.mark.parametrize("rows", [[], [("q", "d01", "test")]])
def test_a_corpus_without_training_qrels_is_refused(rows: list):
    with pytest.raises(FreshetError, match="learns from training qrels.*training.base to null"):
        generator_pairs(make_corpus(rows), 0.1, seed=0)


@pytest.fixture
def long_pair_batch(tmp_path: Path):
    """A batch of a long document with a short query, and the reverse, and its generator.

    At most six tokens of a section and four of a query are read.
    """
    loaded = load(tmp_path)
    reader = tokens(loaded)
    reader.section_tokens = 6
    reader.query_tokens = 4
    long_text = " ".join(f"w{i}" for i in range(20))
    pairs = [GeneratorPair("a", long_text, "w9 w10"), GeneratorPair("b", "w1", "w2 w3 w4 w5 w6")]
    return reader.batch(pairs), loaded


def test_section_with_the_querys_words_is_read(long_pair_batch):
    batch, (_, tokenizer, *_) = long_pair_batch

    long_section, short_section = tokenizer.batch_decode(
        batch["input_ids"], skip_special_tokens=True
    )

    long_tokens, short_tokens = batch["attention_mask"].sum(dim=1).tolist()
    assert {"w9", "w10"} & set(long_section.split())
    assert short_section == "w1"
    assert long_tokens > short_tokens


def test_labels_are_the_tokens_of_the_query(long_pair_batch):
    batch, (model, tokenizer, *_) = long_pair_batch
    end = model.generation_config.eos_token_id

    labels = []
    for row in batch["labels"].tolist():
        labels.append([token for token in row if token != IGNORED])

    assert tokenizer.batch_decode(labels, skip_special_tokens=True)[0] == "w9 w10"
    for row in labels:
        assert len(row) <= 4
        assert row[-1] == end
        assert row[0] != tokenizer.cls_token_id


def found_first(loaded: Loaded, folder: Path) -> float:
    """Share of documents that BM25 ranks first for the query written for them."""
    sizes = {"section_tokens": SECTION_TOKENS, "max_query_tokens": QUERY_TOKENS}
    greedy = SequenceToSequenceSettings(per_document=1, top_k=1, **sizes)
    queries = SequenceToSequence(*loaded, greedy).generate(DOCUMENTS, 0, folder)
    search = Bm25Index.build(list(DOCUMENTS.values()), list(DOCUMENTS)).search
    rankings = search([query.text for query in queries], 1)
    found = [
        dict(ranking).keys() == {query.document_id}
        for ranking, query in zip(rankings, queries, strict=True)
    ]
    return sum(found) / len(found)


def test_overfitted_model_writes_fitting_queries(tmp_path: Path):
    loaded = load(tmp_path)
    assert found_first(loaded, tmp_path / "before") < 0.2

    result = make_trainer(loaded, steps=60, batch_size=16, evaluate_every=30).fit()
    assert result.best_metric > result.history[0][METRIC] + 2
    assert found_first(loaded, tmp_path / "after") > 0.8


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path):
    whole = make_trainer(load(tmp_path), tmp_path / "others")
    expected = whole.fit().to_json()
    kill_at(make_trainer(load(tmp_path), tmp_path / "checkpoints"), 6)
    loaded = load(tmp_path)
    resumed = make_trainer(loaded, tmp_path / "checkpoints")

    assert resumed.state.step == 4
    assert resumed.fit().to_json() == expected

    for model, name in ((whole.trained, "whole"), (resumed.trained, "resumed")):
        save_sequence_model(model, loaded[1], tmp_path / name, SECTION_TOKENS)
    assert hash_path(tmp_path / "whole") == hash_path(tmp_path / "resumed")


def test_loss_is_that_of_the_library(tmp_path: Path):
    loaded = load(tmp_path)
    trainer = make_trainer(
        loaded, held_out=[PAIRS[0], PAIRS[1]._replace(query="w1"), PAIRS[2]], batch_size=2
    )
    total_loss = 0.0
    token_count = 0
    for pair in trainer.held_out:
        batch = tokens(loaded).batch([pair])
        batch_tokens = int((batch["labels"] != IGNORED).sum())
        total_loss += batch_tokens * loaded[0](**batch).loss.item()
        token_count += batch_tokens

    trainer._evaluate()

    expected = -total_loss / token_count
    assert trainer.state.row()[METRIC] == pytest.approx(expected, rel=1e-5)


def test_best_step_is_kept_and_patience_ends(tmp_path: Path):
    loaded = load(tmp_path)
    trainer = make_trainer(loaded, evaluate_every=2, patience=2)
    values = iter([-3.0, -1.0, -2.0, -1.5])
    at_step = {}

    def evaluate() -> None:
        at_step[trainer.state.step] = loaded[0].shared.weight.detach().clone()
        trainer.state.record_evaluation(METRIC, next(values), trainer._trained_weights())

    trainer._evaluate = evaluate
    result = trainer.fit()

    assert result.best_step == 2
    assert result.best_metric == -1.0
    assert result.step == 6
    assert torch.equal(loaded[0].shared.weight, at_step[2])
    assert not torch.equal(at_step[2], at_step[6])


def test_last_step_is_kept_without_held_out_pairs(tmp_path: Path):
    result = make_trainer(load(tmp_path), tmp_path / "checkpoints", held_out=[]).fit()

    assert result.best_step == 12
    assert result.best_metric is None
    assert result.step == 12
