"""Guards training: it learns, resumed = uninterrupted, honest dev metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.context import StageContext
from model_code.errors import SettingsError
from model_code.files import hash_path, read_json
from model_code.lexical.fit import LexicalTrainer
from model_code.lexical.layout import load_encoder
from model_code.lexical.losses import SemiParametricObjective
from model_code.retrievers.lexical import index, open_folders
from model_code.retrievers.settings import parse_retriever
from model_code.stages import train
from model_code.training.tables import TrainingTables
from tests.model_code.lexical.corpus import TRAINING, make_context
from tests.model_code.lexical.example import SETTINGS, make_encoder
from tests.model_code.training.killing import kill_stage_after


def test_training_reports_what_it_did_and_saves_the_encoder(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    report = train.run(context)
    assert {key: report[key] for key in ("head", "supervised_pairs", "steps", "dev_queries", "pairs_seen")} == {
        "head": "closed_form", "supervised_pairs": 16, "steps": 4, "dev_queries": 6, "pairs_seen": 16
    }  # fmt: skip
    history = read_json(context.output / "history.json")
    assert [row["step"] for row in history] == [0, 2, 4]
    assert {"loss", "full", "beta", "alpha"} < history[1].keys()
    assert report["best_dev"] == max(row["nDCG@10"] for row in history)
    saved = load_encoder(context.output / "encoder", precision="float32", device="cpu")
    assert saved.fingerprint() == report["fingerprint"]


@pytest.mark.parametrize("head", ["closed_form", "mlm"])
def test_it_lowers_the_loss_of_a_batch(tmp_path: Path, head: str) -> None:
    context = make_context(tmp_path, SETTINGS, head)
    tables = TrainingTables.load(context)
    data, encoder = tables.training_data(TRAINING), make_encoder(tmp_path / "base", head)
    if head == "closed_form":  # solved, it has nothing left to learn here
        torch.nn.init.orthogonal_(encoder.body.head.transform.weight)
    settings = TRAINING.replace(steps=15, batch_size=8, evaluate_every=None)
    trainer = LexicalTrainer(encoder, data, settings, 0, lexical=SETTINGS)
    batch = trainer.collate(99, np.arange(16))
    before = trainer.model(batch)["loss"].item()
    trainer.fit()
    assert trainer.model(batch)["loss"].item() < 0.95 * before


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_context(tmp_path)
    train.run(whole)
    context = make_context(tmp_path)
    kill_stage_after(3, context, monkeypatch)
    train.run(context)
    assert hash_path(context.output) == hash_path(whole.output)


@pytest.mark.parametrize("search", ["full", "beta_own", "beta_rerank"])
def test_dev_metric_is_that_of_the_search_over_the_whole_build(tmp_path: Path, search: str) -> None:
    lexical = SETTINGS.replace(search=search)
    context = make_context(tmp_path, lexical, steps=1, evaluate_every=None)
    report = train.run(context)
    tables = TrainingTables.load(context)
    evaluator = tables.dev_evaluator(TRAINING, context.settings["seed"])
    output = context.output.parent / "index"
    output.mkdir()
    inputs = {**context.inputs, "trained": context.output}
    index(StageContext(tmp_path, inputs, output, context.settings, output / "shards", "svdr"))
    opened = open_folders(context.output / "encoder", output / "index", precision="float32", device="cpu")
    names = {number: document for document, number in tables.number.items()}
    gains = []
    for row, ranking in enumerate(opened.search(evaluator.queries, 10)):
        answers = {names[int(number)] for number in evaluator.qrels[str(row)]}
        ranks = [rank for rank, (document, _) in enumerate(ranking) if document in answers]
        gains.append(1 / np.log2(ranks[0] + 2) if ranks else 0.0)
    assert report["best_dev"] == pytest.approx(np.mean(gains))


def parts_of(tmp_path: Path, **changes: object) -> tuple:
    context = make_context(tmp_path, SETTINGS, **changes)
    tables = TrainingTables.load(context)
    encoder = make_encoder(tmp_path / "base")
    return context, tables, encoder, tables.training_data(TRAINING)


def test_scales_are_measured_before_training(tmp_path: Path) -> None:
    _, tables, encoder, data = parts_of(tmp_path)
    trainer = LexicalTrainer(encoder, data, TRAINING, 0, lexical=SETTINGS)
    objective = trainer.model
    assert isinstance(objective, SemiParametricObjective)
    batch = trainer.collate(0, trainer.schedule[0])
    spread = objective._spread(batch)
    torch.testing.assert_close(objective.scales, spread)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cotraining": True, "evaluate_every": 5, "batches": "siblings"}, "set cotraining: false"),
        ({"negatives": "mined", "negatives_per_query": 1}, "negatives is mined.*set negatives: bm25"),
    ],
)  # fmt: skip
def test_what_only_dense_vectors_can_do_is_refused_when_it_is_read(changes: dict, message: str) -> None:
    plain = {"kind": "lexical", "hierarchy_weight": 0.0, "negatives": "random", "negatives_per_query": 0}
    assert parse_retriever(plain, {}, "svdr").kind == "lexical"
    with pytest.raises(SettingsError, match=message):
        parse_retriever(plain | changes, {}, "svdr")


def test_shared_settings_that_do_not_touch_a_retriever_without_a_tree_are_let_be(tmp_path: Path) -> None:
    shared = {"cotraining": True, "evaluate_every": 2}
    report = train.run(make_context(tmp_path, SETTINGS, **shared))
    assert report["steps"] == 4


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_longer_than_the_positions_are_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    context = make_context(tmp_path, **{name: 65})
    monkeypatch.setattr("model_code.training.trainer.Trainer.fit", lambda *_: pytest.fail("it trained first"))
    with pytest.raises(SettingsError, match=f"{name} is 65, but the encoder has positions for 64 tokens"):
        train.run(context)


def test_a_corpus_without_dev_queries_keeps_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingTables, "dev_evaluator", lambda *_: None)
    report = train.run(make_context(tmp_path))
    assert (report["best_step"], report["best_dev"]) == (4, None)


def test_dev_of_a_token_search_embeds_no_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tables, encoder, data = parts_of(tmp_path)
    trainer = LexicalTrainer(encoder, data, TRAINING, 0, dev=tables.dev_evaluator(TRAINING, 0), lexical=SETTINGS)
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("a passage was encoded"))
    assert 0 <= trainer._score(trainer.dev, trainer._ranked(trainer.dev)) <= 1
