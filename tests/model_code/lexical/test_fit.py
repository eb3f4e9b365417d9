"""Guards training: both stages learn, resumed = uninterrupted, negatives by present beta search, honest dev metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from model_code.context import StageContext
from model_code.errors import SettingsError
from model_code.files import hash_path, read_json
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.fit import LexicalDev
from model_code.lexical.index import index_tokens
from model_code.lexical.layout import load_encoder
from model_code.lexical.losses import BetaObjective, SemiParametricObjective
from model_code.lexical.trainer import FirstStageTrainer, LexicalTrainer, TokenNegatives
from model_code.retrievers.lexical import index, open_folders
from model_code.retrievers.settings import parse_retriever
from model_code.stages import train
from model_code.training.negatives import make_negatives
from model_code.training.tables import TrainingTables
from tests.model_code.lexical.corpus import TRAINING, make_context
from tests.model_code.lexical.example import SETTINGS, make_encoder
from tests.model_code.training.killing import kill_stage_after

TWO_STAGES = SETTINGS.replace(first_stage_steps=4, in_training_negatives=5, in_training_from=0.5)


def test_two_stages_report_what_they_did_and_save_the_encoder(tmp_path: Path) -> None:
    context = make_context(tmp_path, TWO_STAGES)
    report = train.run(context)
    assert {key: report[key] for key in ("head", "supervised_pairs", "steps", "dev_queries", "pairs_seen")} == {
        "head": "closed_form", "supervised_pairs": 16, "steps": 4, "dev_queries": 6, "pairs_seen": 16
    }  # fmt: skip
    assert report["first_stage"]["steps"] == 4
    assert report["dev_search"] == TWO_STAGES.search
    history, first = (read_json(context.output / f"{name}.json") for name in ("history", "first_stage"))
    assert [row["step"] for row in history] == [row["step"] for row in first] == [0, 2, 4]
    assert {"loss", "full", "beta", "alpha"} < history[1].keys()
    assert report["best_dev"] == max(row["nDCG@10"] for row in history)
    saved = load_encoder(context.output / "encoder", precision="float32", device="cpu")
    assert saved.fingerprint() == report["fingerprint"]


@pytest.mark.parametrize("head", ["closed_form", "mlm"])
@pytest.mark.parametrize("stage", [FirstStageTrainer, LexicalTrainer])
def test_each_stage_lowers_the_loss_of_a_batch(tmp_path: Path, head: str, stage: type[LexicalTrainer]) -> None:
    context = make_context(tmp_path, SETTINGS, head)
    tables = TrainingTables.load(context)
    data, encoder = tables.training_data(TRAINING), make_encoder(tmp_path / "base", head)
    if head == "closed_form":  # solved, it has nothing left to learn here
        torch.nn.init.orthogonal_(encoder.body.head.transform.weight)
    lexical = SETTINGS.replace(first_stage_steps=15, first_stage_batch=8, first_stage_learning_rate=3e-3)
    bags = {"bags": encoder.bags(tables.passages.texts)} if stage is FirstStageTrainer else {}
    settings = TRAINING.replace(steps=15, batch_size=8, evaluate_every=None)
    trainer = stage(encoder, data, settings, 0, lexical=lexical, **bags)
    batch = trainer.collate(99, np.arange(16))
    before = trainer.model(batch)["loss"].item()
    trainer.fit()
    assert trainer.model(batch)["loss"].item() < 0.95 * before


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_context(tmp_path, TWO_STAGES)
    train.run(whole)
    for killed_after in (3, 7):  # steps: in the first stage, in the second
        context = make_context(tmp_path, TWO_STAGES)
        kill_stage_after(killed_after, context, monkeypatch)
        train.run(context)
        assert hash_path(context.output) == hash_path(whole.output)


def test_only_the_first_stage_if_asked(tmp_path: Path) -> None:
    context = make_context(tmp_path, SETTINGS.replace(first_stage_steps=3, semi_parametric=False))
    report = train.run(context)
    assert report["steps"] == 3
    assert "first_stage" not in report
    assert report["dev_search"] == "beta_own"
    assert not (context.output / "first_stage.json").exists()


def test_only_the_terms_that_are_asked_for_train(tmp_path: Path) -> None:
    """The paper's ablation without the semi-parametric objective: E(q) against E(p) alone."""
    context = make_context(tmp_path, SETTINGS.replace(terms=("full",)))
    train.run(context)
    row = read_json(context.output / "history.json")[1]
    assert not {"beta", "alpha"} & row.keys()
    assert row["loss"] == pytest.approx(row["full"])


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


def test_negatives_are_the_best_wrong_passages_of_the_present_encoder(tmp_path: Path) -> None:
    context, tables, encoder, data = parts_of(tmp_path)
    settings, lexical = TRAINING.replace(negatives_per_query=9), SETTINGS.replace(in_training_negatives=4)
    texts = tables.passages.texts
    tokens = index_tokens(encoder, texts, [str(passage) for passage in range(len(texts))])
    negatives = TokenNegatives(make_negatives(data, settings), data, settings, lexical, tokens, first=2)
    hierarchy = Hierarchy.load(context.inputs["hierarchy"])
    pairs, rng = np.arange(6), np.random.default_rng(0)
    known = [tables.passages.of(next(iter(data.pairs.relevant[pair]))) for pair in pairs]
    assert [negatives.needs_refresh(step) for step in (0, 1, 2, 3)] == [False, False, True, True]
    assert len(negatives.draw(pairs, known, rng)[0]) == 9  # at random until then
    bags = encoder.bags(texts)
    for tree in (None, hierarchy):
        negatives.recluster(tree)
        negatives.refresh(encoder)
        torch.nn.init.uniform_(encoder.bias, -2, 2)  # weights of that very step, not of the refresh
        queries = encoder.encode_queries([data.pairs.queries[pair] for pair in pairs])
        for pair, drawn, (ids, weights) in zip(pairs, negatives.draw(pairs, known, rng), queries, strict=True):
            own = data.pairs.passages[pair]
            scores = np.array([weights[np.isin(ids, bag)].astype(np.float64).sum() for bag in bags])
            banned = {*known[pair].tolist(), *data.pairs.passages[pairs].tolist()}
            best = [p for p in np.lexsort([[str(p) for p in range(len(bags))], -scores]).tolist() if p not in banned]
            best = [p for p in best if 0 < scores[p] <= scores[own] * (1 + 1e-6)][:4]
            best = [p for p in best if tree is None or tree.leaves[p] != tree.leaves[own]]
            assert sorted(drawn) == sorted(best)


def test_of_a_query_with_answers_only_what_holds_one_is_dropped(tmp_path: Path) -> None:
    """The best m wrong passages less those with an answer; leaf and score say nothing where the data has strings."""
    context, tables, encoder, data = parts_of(tmp_path)
    settings, lexical = TRAINING.replace(negatives_per_query=9), SETTINGS.replace(in_training_negatives=8)
    texts, pairs = tables.passages.texts, np.arange(6)
    named = {query: ["The Word3!", "word9, word5"] for query in data.pairs.queries[::2]}
    data = replace(data, supervised=replace(data.supervised, answers=named))
    tokens = index_tokens(encoder, texts, [str(passage) for passage in range(len(texts))])
    negatives = TokenNegatives(make_negatives(data, settings), data, settings, lexical, tokens, first=0)
    hierarchy = Hierarchy.load(context.inputs["hierarchy"])
    negatives.recluster(hierarchy)
    negatives.refresh(encoder)
    torch.nn.init.uniform_(encoder.bias, -2, 2)
    known = [tables.passages.of(next(iter(data.pairs.relevant[pair]))) for pair in pairs]
    queries = encoder.encode_queries([data.pairs.queries[pair] for pair in pairs])
    bags, dropped, beyond = encoder.bags(texts), 0, 0
    drawn = negatives.draw(pairs, known, np.random.default_rng(0))
    for pair, row, (ids, weights) in zip(pairs, drawn, queries, strict=True):
        own, asked = data.pairs.passages[pair], data.pairs.queries[pair] in named
        scores = np.array([weights[np.isin(ids, bag)].astype(np.float64).sum() for bag in bags])
        banned = {*known[pair].tolist(), *data.pairs.passages[pairs].tolist()}
        best = [p for p in np.lexsort([[str(p) for p in range(len(bags))], -scores]).tolist() if p not in banned]
        best = [p for p in best if scores[p] > 0 and (asked or scores[p] <= scores[own] * (1 + 1e-6))][:8]
        suspect = {p for p in best if hierarchy.leaves[p] == hierarchy.leaves[own]}
        held = {p for p in best if "word3" in texts[p].split() or "word9 word5" in texts[p]}
        assert sorted(row) == sorted(set(best) - (held if asked else suspect))
        dropped += asked * len(held)
        beyond += asked * sum(scores[p] > scores[own] or p in suspect for p in row)
    assert dropped > 0
    assert beyond > 0


def test_a_corpus_with_answers_trains_on_drawn_negatives_that_hold_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexical = SETTINGS.replace(in_training_negatives=20, in_training_from=0.5, in_training_margin=9.0)
    context = make_context(tmp_path, lexical, negatives_per_query=3, steps=8)
    path = context.inputs["corpus"] / "queries.parquet"
    words = [f"word{i}" for i in range(8)]
    table = pd.read_parquet(path)
    table.assign(answers=[json.dumps([f"the {w}." for w in words]), None] * 12).to_parquet(path)
    texts = TrainingTables.load(context).passages.texts
    asked = set(table["text"][:16:2])  # of those to train on
    drawn: dict[bool, list[tuple[bool, bool]]] = {True: [], False: []}  # by whether it was searched
    draw = TokenNegatives.draw

    def spy(negatives: TokenNegatives, pairs: np.ndarray, known: list, rng: np.random.Generator) -> list[list[int]]:
        rows = draw(negatives, pairs, known, rng)
        for pair, row in zip(pairs, rows, strict=True):
            named = negatives.data.pairs.queries[pair] in asked
            held = [any(word in texts[p].split() for word in words) for p in row]
            drawn[negatives.encoder is not None] += [(named, one) for one in held]
        return rows

    monkeypatch.setattr(TokenNegatives, "draw", spy)
    assert train.run(context)["steps"] == 8
    for found in drawn.values():
        assert (True, False) in found
        assert (True, True) not in found
        assert (False, True) in found, "queries without answers may be given the same passages"


def test_scales_are_measured_before_training_or_left_at_one(tmp_path: Path) -> None:
    _, tables, encoder, data = parts_of(tmp_path)
    trainer = LexicalTrainer(encoder, data, TRAINING, 0, lexical=SETTINGS)
    objective = trainer.model
    assert isinstance(objective, SemiParametricObjective)
    batch = trainer.collate(0, trainer.schedule[0])
    spread = objective._spread(batch)
    torch.testing.assert_close(objective.scales, spread)
    raw = LexicalTrainer(encoder, data, TRAINING, 0, lexical=SETTINGS.replace(score_scale="raw"))
    assert raw.model.scales.tolist() == [1, 1, 1]


def test_first_stage_scores_are_weights_times_bags(tmp_path: Path) -> None:
    _, tables, encoder, data = parts_of(tmp_path)
    lexical = SETTINGS.replace(first_stage_steps=1)
    bags = encoder.bags(tables.passages.texts)
    trainer = FirstStageTrainer(encoder, data, TRAINING, 0, lexical=lexical, bags=bags)
    assert isinstance(trainer.model, BetaObjective)
    pairs = trainer.schedule[0]
    batch, shown = trainer.collate(5, pairs), trainer.collate._shown(5, data.pairs.passages[pairs])
    scores = trainer.model._scores(trainer.model._queries(batch), batch).detach().numpy()
    assert shown[batch.positives].tolist() == data.pairs.passages[pairs].tolist()
    for row, pair in enumerate(pairs):
        entries, weights = encoder.sparse(encoder.tokenize([data.pairs.queries[pair]]), SETTINGS.top_k, own=True)
        own = encoder.bags([data.pairs.queries[pair]])[0]
        assert np.isin(own, entries.numpy()).all()
        for column, passage in enumerate(shown):
            expected = weights.detach().numpy()[np.isin(entries, bags[passage])].sum()
            assert scores[row, column] == pytest.approx(expected, rel=1e-4, abs=1e-5)
            answers = tables.passages.documents[passage] in data.pairs.relevant[pair]
            assert bool(batch.answers[row, column]) == answers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cotraining": True, "evaluate_every": 5, "batches": "siblings"}, "set cotraining: false"),
        ({"negatives": "mined", "negatives_per_query": 1}, "negatives is mined.*in_training_negatives for those"),
        ({"lexical": {"in_training_negatives": 5, "semi_parametric": False, "first_stage_steps": 9},
          "negatives_per_query": 1}, "set in_training_negatives: 0"),
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


def test_a_span_that_is_held_out_of_its_passage_is_so_in_the_first_stage(tmp_path: Path) -> None:
    _, tables, encoder, data = parts_of(tmp_path)
    rest = "word1 word2"
    data = replace(data, supervised=replace(data.supervised, positives={1: rest}))
    bags = encoder.bags(tables.passages.texts)
    lexical = SETTINGS.replace(first_stage_steps=1)
    trainer = FirstStageTrainer(encoder, data, TRAINING, 0, lexical=lexical, bags=bags)
    batch, shown = trainer.collate(0, np.array([0, 1, 2])), trainer.collate._shown(0, data.pairs.passages[[0, 1, 2]])
    tokens = [set(batch.bags[1][batch.bags[0] == column].tolist()) for column in range(batch.answers.shape[1])]
    for row, pair in enumerate((0, 1, 2)):
        expected = encoder.bags([rest])[0] if pair == 1 else bags[data.pairs.passages[pair]]
        assert tokens[batch.positives[row]] == set(expected.tolist())
    assert batch.answers.shape[1] == len(shown) + 1
    assert batch.answers[:, -1].all(), "cut for one pair, it is no negative of another"
    own = int(np.flatnonzero(shown == data.pairs.passages[1])[0])
    assert batch.answers[1, own], "nor is the whole passage of that pair"


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_longer_than_the_positions_are_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    context = make_context(tmp_path, TWO_STAGES, **{name: 65})
    monkeypatch.setattr("model_code.training.trainer.Trainer.fit", lambda *_: pytest.fail("it trained first"))
    with pytest.raises(SettingsError, match=f"{name} is 65, but the encoder has positions for 64 tokens"):
        train.run(context)


def test_in_training_negatives_without_a_number_per_query_are_refused() -> None:
    shared = {"hierarchy_weight": 0.0, "negatives": "random"}
    own = {"kind": "lexical", "lexical": {"in_training_negatives": 20}}
    with pytest.raises(SettingsError, match="in_training_negatives is 20.*set negatives_per_query"):
        parse_retriever(own, shared | {"negatives_per_query": 0}, "retrievers.svdr")
    assert parse_retriever(own, shared | {"negatives_per_query": 1}, "r").lexical.in_training_negatives == 20


def test_a_corpus_without_dev_queries_keeps_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingTables, "dev_evaluator", lambda *_: None)
    report = train.run(make_context(tmp_path))
    assert (report["best_step"], report["best_dev"]) == (4, None)


def test_dev_of_a_token_search_embeds_no_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tables, encoder, _ = parts_of(tmp_path)
    dev = LexicalDev(tables.dev_evaluator(TRAINING, 0), encoder, SETTINGS, "beta_own")
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("a passage was encoded"))
    assert 0 <= dev.score(None, dev.encode_passages()) <= 1
