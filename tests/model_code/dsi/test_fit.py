"""Guards training: it learns from either start, never ends below its start, resumes bit for bit,
and is repeatable.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_code.context import StageContext
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.vectors import REPRESENTATIVES, document_means
from model_code.encoding.encoder import Encoder
from model_code.errors import SettingsError
from model_code.evaluation.metrics import evaluate_run
from model_code.files import hash_path, read_json
from model_code.retrieval.dense_index import DenseIndex
from model_code.stages import train
from model_code.training.tables import DevEvaluator, TrainingTables
from tests.model_code.dsi.small_corpus import ENCODER, IDS, LONG, QUIET, make_context
from tests.model_code.training.killing import kill_stage_after

FAST = DocumentVectorSettings(epochs=8, batch_size=16, learning_rate=2e-2, patience=None)
Run = tuple[StageContext, dict]
JOINT = DocumentVectorSettings(epochs=3, batch_size=16, learning_rate=2e-2, train_encoder=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dsi")


@pytest.fixture(scope="module")
def frozen(root: Path) -> Run:
    return run(make_context(root, FAST))


@pytest.fixture(scope="module")
def joint(root: Path) -> Run:
    return run(make_context(root, JOINT))


def run(context: StageContext) -> Run:
    return context, train.run(context)


def trained(context: StageContext) -> DenseIndex:
    return DenseIndex.load(context.output / "document_vectors")


def test_from_documents_it_learns_and_the_encoder_stays(root: Path, frozen: Run):
    context, report = frozen
    history = read_json(context.output / "history.json")
    assert report["best_dev"] == max(row["nDCG@10"] for row in history if "nDCG@10" in row)
    assert report["best_dev"] > report["start_dev"] + 0.2
    assert (report["supervised_pairs"], report["unsupervised_pairs"], report["documents"]) == (
        48,
        20,
        24,
    )
    assert report["trained_parameters"] == 24 * 32
    assert {"loss", "cross_entropy", "learning_rate"} < set(history[1])
    base = Encoder.load(root / "base", **ENCODER).fingerprint()
    saved = Encoder.load(context.output / "encoder", **ENCODER).fingerprint()
    assert report["fingerprint"] == trained(context).fingerprint == base == saved


def test_vectors_may_start_at_random(root: Path):
    settings = DocumentVectorSettings(initial="random", epochs=1, batch_size=16)
    context = make_context(root, settings, steps=1)

    report = train.run(context)

    base = DenseIndex.load(root / "base_index").vectors
    vectors = trained(context).vectors
    assert report["start_dev"] < 0.5
    assert np.abs(vectors[:4] @ base.T).max() < 0.8
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01)


def test_step_0_averages_base_index_passages(root: Path, frozen: Run):
    context, report = frozen
    base = DenseIndex.load(root / "base_index")
    queries = TrainingTables.load(context).dev.queries
    means = document_means(
        base.vectors, np.array([IDS.index(name) for name in base.document_ids]), 24
    )
    encoder = Encoder.load(root / "base", **ENCODER)
    zero_shot = DenseIndex.build(means, IDS, encoder.fingerprint())
    rankings = zero_shot.search(encoder.encode(list(queries.values())), 10, encoder.fingerprint())
    assert report["start_dev"] == pytest.approx(
        ndcg(context, dict(zip(queries, rankings, strict=True)))
    )
    single = [name for name in IDS if name not in LONG]
    rows = [IDS.index(name) for name in single]
    np.testing.assert_allclose(
        zero_shot.vectors[rows], base.vectors[base.ids.rows_of(single)], atol=1e-6
    )


def ndcg(context: StageContext, run: dict[str, list[tuple[str, float]]]) -> float:
    qrels = TrainingTables.load(context).dev.qrels
    return float(np.mean(list(evaluate_run(run, qrels, ["nDCG@10"])["nDCG@10"].values())))


def test_worse_training_returns_the_start(root: Path, monkeypatch: pytest.MonkeyPatch):
    values = iter([0.9, 0.5, 0.4, 0.3, 0.2])
    monkeypatch.setattr(DevEvaluator, "score", lambda *_: next(values))
    context = make_context(root, DocumentVectorSettings(epochs=12, batch_size=16, patience=2))
    report = train.run(context)
    base = DenseIndex.load(root / "base_index")
    # two epochs of four steps without a new best
    assert (report["best_step"], report["steps"]) == (0, 8)
    np.testing.assert_allclose(trained(context).vectors[0], base.vectors[0], atol=1e-6)


def test_joint_training_changes_the_encoder(root: Path, joint: Run):
    context, report = joint
    assert report["best_step"] > 0
    assert report["best_dev"] > report["start_dev"]
    assert report["trained_parameters"] > 24 * 32
    encoder = Encoder.load(context.output / "encoder", **ENCODER)
    assert (
        encoder.fingerprint()
        == report["fingerprint"]
        != Encoder.load(root / "base", **ENCODER).fingerprint()
    )
    queries = TrainingTables.load(context).dev.queries
    index = DenseIndex.build(trained(context).vectors, IDS, report["fingerprint"])
    rankings = index.search(encoder.encode(list(queries.values())), 10, report["fingerprint"])
    assert ndcg(context, dict(zip(queries, rankings, strict=True))) == pytest.approx(
        report["best_dev"]
    )


def test_the_hierarchy_joins_in(root: Path):
    context = make_context(root, JOINT, hierarchy_weight=0.5)
    train.run(context)
    row = next(row for row in read_json(context.output / "history.json") if "loss" in row)
    hierarchy = [value for name, value in row.items() if name.startswith("hierarchy_")]
    assert len(hierarchy) >= 1
    assert row["loss"] == pytest.approx(row["cross_entropy"] + 0.5 * sum(hierarchy), rel=1e-5)


@pytest.mark.parametrize(("supervision", "silent"), [("joint", 1), ("unsupervised", 4)])
def test_representatives_are_mean_training_queries(root: Path, supervision: str, silent: int):
    context, report = run(make_context(root, FAST, supervision=supervision, steps=4))
    tables, encoder = TrainingTables.load(context), Encoder.load(root / "base", **ENCODER)
    data = tables.training_data(context.settings["retriever"].training)
    found = trained(context)
    beside, counts = np.load(context.output / "document_vectors" / REPRESENTATIVES), {}
    for number, name in enumerate(IDS):
        own = [
            query
            for query, passage in zip(data.pairs.queries, data.pairs.passages, strict=True)
            if tables.passages.documents[passage] == number
        ]
        counts[name] = len(own)
        expected = encoder.encode(own).mean(axis=0) if own else found.vectors[number]
        np.testing.assert_allclose(beside[number], expected, atol=1e-5)
    assert report["documents_without_queries"] == list(counts.values()).count(0) == silent
    assert counts[QUIET] == 0


@pytest.mark.parametrize(("name", "own"), [("frozen", FAST), ("joint", JOINT)])
def test_resumed_training_equals_uninterrupted(root, request, monkeypatch, name, own):
    killed = make_context(root, own)
    kill_stage_after(7, killed, monkeypatch)
    seen: list[int] = []
    train.run(
        replace(killed, progress=lambda label: lambda done, total, note="": seen.append(done))
    )
    assert 1 not in seen[1:]  # the first is of the encoded queries
    uninterrupted = hash_path(request.getfixturevalue(name)[0].output)
    assert hash_path(killed.output) == uninterrupted
    assert hash_path(run(make_context(root, own, seed_offset=1))[0].output) != uninterrupted


def test_dev_queries_are_encoded_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    counts, encode = [], Encoder.encode

    def spy(encoder: Encoder, texts: list[str], *rest: object) -> np.ndarray:
        counts.append(len(texts))
        return encode(encoder, texts, *rest)

    context = make_context(root, FAST, steps=8)
    monkeypatch.setattr(Encoder, "encode", spy)
    train.run(context)
    assert counts == [66, 24]  # different training queries (two answer d05 and d06), dev queries


def test_vectors_of_another_encoder_are_not_taken(root: Path, tmp_path: Path, frozen: Run):
    index, context = DenseIndex.load(root / "base_index"), make_context(root, FAST, steps=1)
    DenseIndex.build(index.vectors[::-1], index.document_ids, "another fingerprint").save(tmp_path)
    changed = replace(context, inputs=context.inputs | {"base_index": tmp_path})
    assert train.run(changed)["start_dev"] == frozen[1]["start_dev"]


def test_what_would_have_no_effect_is_refused(root: Path):
    with pytest.raises(SettingsError, match="teaches the query encoder.*set hierarchy_weight: 0"):
        train.run(make_context(root, FAST, hierarchy_weight=0.2))
    with pytest.raises(SettingsError, match="a dsi encodes none"):
        train.run(
            make_context(root, JOINT, cotraining=True, evaluate_every=2, hierarchy_weight=0.2)
        )


def test_queries_beyond_the_positions_are_refused(root: Path):
    train.run(make_context(root, JOINT, query_max_tokens=64, document_max_tokens=65, steps=1))
    with pytest.raises(
        SettingsError, match="query_max_tokens is 65, but the encoder has positions for 64"
    ):
        train.run(make_context(root, JOINT, query_max_tokens=65))
