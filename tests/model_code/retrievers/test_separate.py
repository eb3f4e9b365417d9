"""Guards `encoders: separate` from end to end, for every kind that has it: train, index and search take each text to
its side, outputs are pure, a lost or swapped side is refused, and what makes no sense is refused in words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from model_code.context import StageContext
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings, LayerSettings
from model_code.encoding.sides import QUERY_ENCODER
from model_code.errors import FingerprintMismatch, FreshetError, SettingsError
from model_code.evaluation.runs import read_run, write_run
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import hash_path, read_json
from model_code.index.settings import IndexSettings
from model_code.lexical.layout import load_encoder
from model_code.lexical.settings import LexicalSettings
from model_code.retrievers.kinds import open_retriever
from model_code.retrievers.settings import RetrieverSettings, parse_retriever
from model_code.stages import evaluate, index, train
from model_code.training.settings import TrainingSettings
from tests.model_code.lexical.corpus import make_context as lexical_context
from tests.model_code.lexical.example import SETTINGS, dense_weights
from tests.model_code.stages.test_train import make_context as dense_context
from tests.model_code.training.killing import kill_stage_after

TWO_STAGES = SETTINGS.replace(first_stage_steps=3, search="full")
KINDS: dict[str, Any] = {
    "dense": LayerSettings(),
    "multi_vector": LayerSettings(numbers=(1,), pooling="multi_vector"),
    "closed_form": TWO_STAGES,
    "mlm": SETTINGS,
}
EVERY = pytest.mark.parametrize("kind", KINDS)
OPENED = EncoderSettings(base="unused", max_tokens=16, precision="float32", device="cpu")
QUERIES = ["word1 word2", "word7", "word3 word11 word20"]


def make(tmp_path: Path, kind: str, encoders: str = "separate", **changes: object) -> StageContext:
    """The context of training; dev is not asked, so that the last step is what is kept."""
    group = KINDS[kind]
    if isinstance(group, LexicalSettings):
        context, own = lexical_context(tmp_path, group, kind, **changes), {}
    else:
        context, own = dense_context(tmp_path, **changes), {"layers": group}
    retriever = context.settings["retriever"].replace(encoders=encoders, **own)
    return replace(context, settings=context.settings | {"retriever": retriever, "index": IndexSettings()})


@pytest.fixture
def no_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus without dev queries: the last step is kept."""
    monkeypatch.setattr("model_code.training.tables.TrainingTables.dev_evaluator", lambda *_: None)


def indexed(context: StageContext) -> tuple[Path, dict[str, Any]]:
    """Run the stage `index` on what lies in the output of training; the index's folder and the report."""
    output = context.output.parent / "indexed"
    shutil.rmtree(output, ignore_errors=True)
    (output / "checkpoints").mkdir(parents=True)
    inputs = {"corpus": context.inputs["corpus"], "trained": context.output}
    report = index.run(replace(context, inputs=inputs, output=output, checkpoints=output / "checkpoints"))
    return output / "index", report


def load(folder: Path, kind: str) -> Any:
    """One side alone, or both, as the folder has them."""
    loader = load_encoder if isinstance(KINDS[kind], LexicalSettings) else Encoder.load
    return loader(folder, 16, precision="float32", device="cpu")


@EVERY
def test_trained_indexed_and_searched(tmp_path: Path, kind: str, no_dev: None) -> None:
    context = make(tmp_path, kind)
    report = train.run(context)
    folder, facts = indexed(context)
    encoder = load(context.output / "encoder", kind)
    assert encoder.fingerprints() == report["sides"] == read_json(folder / "manifest.json")["sides"]
    assert encoder.fingerprint() == report["fingerprint"] == facts["fingerprint"]
    sides = [dict(side.backbone.named_parameters()) for side in encoder.sides]
    name = next(name for name in sides[0] if "layer.1." in name)
    assert not torch.equal(sides[0][name], sides[1][name])
    opened = open_retriever(context.output / "encoder", folder, OPENED)
    alone = load(context.output / "encoder" / QUERY_ENCODER, kind)
    if isinstance(KINDS[kind], LexicalSettings):
        found, expected = opened.encode_queries(QUERIES), queries_of(opened, alone)
        for (ids, weights), (others, wanted) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ids, others)
            np.testing.assert_allclose(weights, wanted, rtol=1e-5)
    else:
        np.testing.assert_array_equal(opened.encode_queries(QUERIES), alone.encode(QUERIES))
    assert_evaluated(context, folder, opened)


def assert_evaluated(context: StageContext, folder: Path, opened: Any) -> None:
    """The stage `evaluate` ranks the judged queries as the opened retriever does."""
    output, baselines = context.output.parent / "evaluated", context.output.parent / "baselines"
    for split in ("dev", "test"):
        (baselines / "bm25").mkdir(parents=True, exist_ok=True)
        write_run(baselines / "bm25" / f"run.{split}.trec", {}, "bm25")
    output.mkdir()
    inputs = {**context.inputs, "trained": context.output, "index": folder, "baselines": baselines}
    settings = context.settings | {"encoder": OPENED, "evaluation": EvaluationSettings(variants=False)}
    report = evaluate.run(replace(context, inputs=inputs, output=output, settings=settings))
    queries = pd.read_parquet(context.inputs["corpus"] / "queries.parquet").query("split == 'test'")
    expected = opened.search(queries["text"].tolist(), 100)
    found = read_run(output / "run.test.trec")
    assert report["test"]["queries"] == len(queries) == 2
    for query, ranking in zip(queries["query_id"], expected, strict=True):
        assert ranking
        assert [document for document, _ in found[query]] == [document for document, _ in ranking]


def queries_of(opened: Any, alone: Any) -> Any:
    """What the query side alone makes of the queries for the main search."""
    return alone.encode_own(QUERIES) if opened.main == "beta_own" else alone.encode_queries(QUERIES)


@EVERY
def test_equal_inputs_give_equal_bytes_and_shared_is_another_run(tmp_path: Path, kind: str) -> None:
    outputs, reports = [], []
    for encoders in ("separate", "separate", "shared"):
        context = make(tmp_path, kind, encoders)
        reports.append(train.run(context))
        outputs.append((hash_path(context.output), hash_path(indexed(context)[0])))
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    assert not (context.output / "encoder" / QUERY_ENCODER).exists()
    assert set(reports[0]) - set(reports[2]) == {"sides"}
    assert reports[0]["trained_parameters"] == 2 * reports[2]["trained_parameters"]
    assert "sides" not in read_json(context.output.parent / "indexed" / "index" / "manifest.json")


@EVERY
def test_sides_are_not_to_be_swapped_or_lost(tmp_path: Path, kind: str, no_dev: None) -> None:
    context = make(tmp_path, kind)
    train.run(context)
    folder = shutil.copytree(indexed(context)[0], tmp_path / "built")
    encoder, aside = context.output / "encoder", tmp_path / "aside"
    shutil.copytree(encoder / QUERY_ENCODER, aside)
    rankings = open_retriever(encoder, folder, OPENED).search(QUERIES, 16)
    with pytest.raises(FingerprintMismatch, match="that of documents was"):
        open_retriever(aside, folder, OPENED)
    shutil.rmtree(encoder / QUERY_ENCODER)
    with pytest.raises(FingerprintMismatch, match="that of queries was"):
        open_retriever(encoder, folder, OPENED)
    shutil.copytree(encoder, tmp_path / "documents")
    shutil.copytree(tmp_path / "documents", encoder / QUERY_ENCODER)  # queries by the documents' side
    with pytest.raises(FingerprintMismatch, match="that of queries was"):
        open_retriever(encoder, folder, OPENED)
    others, _ = indexed(context)
    assert open_retriever(encoder, others, OPENED).search(QUERIES, 16) != rankings
    shutil.rmtree(encoder / QUERY_ENCODER)
    shutil.copytree(aside, encoder / QUERY_ENCODER)
    assert open_retriever(encoder, folder, OPENED).search(QUERIES, 16) == rankings


@pytest.mark.parametrize(("kind", "killed_after"), [("multi_vector", 3), ("closed_form", 2), ("closed_form", 6)])
def test_a_killed_run_resumes_to_the_same_bytes(
    tmp_path: Path, kind: str, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, context = make(tmp_path, kind), make(tmp_path, kind)
    train.run(whole)
    kill_stage_after(killed_after, context, monkeypatch)
    train.run(context)
    assert hash_path(context.output) == hash_path(whole.output)


def test_the_semi_parametric_loss_reaches_both_sides(tmp_path: Path) -> None:
    from model_code.lexical.trainer import LexicalTrainer
    from model_code.training.tables import TrainingTables
    from tests.model_code.lexical.corpus import TRAINING
    from tests.model_code.lexical.example import make_encoder

    data = TrainingTables.load(lexical_context(tmp_path)).training_data(TRAINING)
    one, two = make_encoder(tmp_path / "base"), make_encoder(tmp_path / "base")
    two.separate()
    grads = []
    for encoder in (one, two):
        trainer = LexicalTrainer(encoder, data, TRAINING, 0, lexical=SETTINGS)
        trainer.model(trainer.collate(0, trainer.schedule[0]))["loss"].backward()
        grads.append([{name: w.grad for name, w in side.named_parameters()} for side in encoder.sides])
        rates = {group["lr"] for group in trainer.optimizer.param_groups}
    assert len(rates) == 3  # transformer, head and biases, whichever side they are of
    (both,), (documents, queries) = grads
    for name in (name for name, grad in both.items() if grad is not None):
        assert min(documents[name].norm(), queries[name].norm()) > 0
        torch.testing.assert_close(documents[name] + queries[name], both[name], rtol=1e-3, atol=1e-6)


def test_saved_sides_load_outside(tmp_path: Path, no_dev: None) -> None:
    from sentence_transformers import SparseEncoder

    context = make(tmp_path, "closed_form")
    train.run(context)
    encoder = load(context.output / "encoder", "closed_form")
    for folder, side in (("encoder", encoder), (f"encoder/{QUERY_ENCODER}", encoder.query_encoder)):
        outside = SparseEncoder(str(context.output / folder), trust_remote_code=True, device="cpu")
        expected = dense_weights(side, side.tokenize(QUERIES)).detach()
        found = outside.encode(QUERIES, convert_to_sparse_tensor=False, max_active_dims=side.vocabulary_size)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"kind": "dsi", "hierarchy_weight": 0.0}, "a dsi's encoder has queries only"),
        ({"kind": "lexical", "lexical": {"semi_parametric": False, "first_stage_steps": 4}}, "semi-parametric loss"),
        ({"encoders": "two"}, "must be one of 'shared', 'separate'"),
    ],
)
def test_what_makes_no_sense_is_refused(own: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_retriever({"encoders": "separate", **own}, {}, "retrievers.r")


def test_the_default_is_shared() -> None:
    assert RetrieverSettings(training=TrainingSettings()).encoders == "shared"


def test_a_base_of_two_sides_is_refused_in_training(tmp_path: Path, no_dev: None) -> None:
    for kind in ("dense", "closed_form"):
        context = make(tmp_path / kind, kind)
        train.run(context)
        settings = context.settings | {"encoder": OPENED.replace(base=str(context.output / "encoder"))}
        with pytest.raises(FreshetError, match="one encoder for both sides"):
            train.run(replace(context, settings=settings))
