"""Tests of training a dsi.

Training learns from either start, never ends below its start, resumes bit for bit and is
repeatable.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
JOINT = DocumentVectorSettings(epochs=3, batch_size=16, learning_rate=2e-2, train_encoder=True)


class Run(NamedTuple):
    """A training that ran, and its report."""

    context: StageContext
    report: dict[str, Any]

    @property
    def document_vectors(self) -> DenseIndex:
        """The vectors that training wrote."""
        return read_document_vectors(self.context)


def run_training(context: StageContext) -> Run:
    """Run the stage `train`."""
    return Run(context, train.run(context))


def read_document_vectors(context: StageContext) -> DenseIndex:
    """Read the document vectors that training wrote."""
    return DenseIndex.load(context.output / "document_vectors")


def load_base_encoder(root: Path) -> Encoder:
    """Load the encoder that training starts from."""
    return Encoder.load(root / "base", **ENCODER)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the corpus and of every run."""
    return tmp_path_factory.mktemp("dsi")


@pytest.fixture(scope="module")
def frozen(root: Path) -> Run:
    """A training of the document vectors only."""
    return run_training(make_context(root, FAST))


@pytest.fixture(scope="module")
def joint(root: Path) -> Run:
    """A training of the document vectors and the encoder."""
    return run_training(make_context(root, JOINT))


def test_training_improves_the_dev_metric(frozen: Run):
    history = read_json(frozen.context.output / "history.json")
    dev_values = [row["nDCG@10"] for row in history if "nDCG@10" in row]

    assert {"loss", "cross_entropy", "learning_rate"} < set(history[1])
    assert frozen.report["best_dev"] == max(dev_values)
    assert frozen.report["best_dev"] > frozen.report["start_dev"] + 0.2


def test_report_has_the_sizes_of_training(frozen: Run):
    report = frozen.report

    assert report["supervised_pairs"] == 48
    assert report["unsupervised_pairs"] == 20
    assert report["documents"] == 24
    assert report["trained_parameters"] == 24 * 32


def test_frozen_encoder_stays(root: Path, frozen: Run):
    saved = Encoder.load(frozen.context.output / "encoder", **ENCODER)

    base_fingerprint = load_base_encoder(root).fingerprint()
    assert saved.fingerprint() == base_fingerprint
    assert frozen.report["fingerprint"] == base_fingerprint
    assert frozen.document_vectors.fingerprint == base_fingerprint


def test_vectors_may_start_at_random(root: Path):
    settings = DocumentVectorSettings(initial="random", epochs=1, batch_size=16)

    run = run_training(make_context(root, settings, steps=1))

    base_vectors = DenseIndex.load(root / "base_index").vectors
    vectors = run.document_vectors.vectors
    assert run.report["start_dev"] < 0.5
    assert np.abs(vectors[:4] @ base_vectors.T).max() < 0.8
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01)


def mean_passage_vectors(root: Path) -> np.ndarray:
    """Return the mean of the base vectors of each document's passages, shape (24, 32)."""
    base = DenseIndex.load(root / "base_index")
    numbers = np.array([IDS.index(name) for name in base.document_ids])
    return document_means(base.vectors, numbers, 24)


def dev_ndcg(context: StageContext, encoder: Encoder, vectors: np.ndarray) -> float:
    """Return nDCG@10 of the dev queries over one vector per document."""
    dev = TrainingTables.load(context).dev
    index = DenseIndex.build(vectors, IDS, encoder.fingerprint())
    query_vectors = encoder.encode_queries(list(dev.queries.values()))
    rankings = index.search(query_vectors, 10, encoder.fingerprint())
    run = dict(zip(dev.queries, rankings, strict=True))
    values = evaluate_run(run, dev.qrels, ["nDCG@10"])["nDCG@10"]
    return float(np.mean(list(values.values())))


def test_start_is_the_mean_of_passage_vectors(root: Path, frozen: Run):
    start_dev = dev_ndcg(frozen.context, load_base_encoder(root), mean_passage_vectors(root))

    assert frozen.report["start_dev"] == pytest.approx(start_dev)


def test_mean_of_one_passage_is_its_vector(root: Path):
    base = DenseIndex.load(root / "base_index")
    names = [name for name in IDS if name not in LONG]
    rows = [IDS.index(name) for name in names]

    means = mean_passage_vectors(root)

    np.testing.assert_allclose(means[rows], base.vectors[base.ids.rows_of(names)], atol=1e-6)


def test_worse_training_returns_the_start(root: Path, monkeypatch: pytest.MonkeyPatch):
    values = iter([0.9, 0.5, 0.4, 0.3, 0.2])

    def next_score(*arguments: object) -> float:
        return next(values)

    monkeypatch.setattr(DevEvaluator, "score", next_score)
    settings = DocumentVectorSettings(epochs=12, batch_size=16, patience=2)

    run = run_training(make_context(root, settings))

    base_vectors = DenseIndex.load(root / "base_index").vectors
    assert run.report["best_step"] == 0
    # These are two epochs of four steps without a new best.
    assert run.report["steps"] == 8
    np.testing.assert_allclose(run.document_vectors.vectors[0], base_vectors[0], atol=1e-6)


def test_joint_training_improves_the_dev_metric(joint: Run):
    report = joint.report

    assert report["best_step"] > 0
    assert report["best_dev"] > report["start_dev"]
    assert report["trained_parameters"] > 24 * 32


def test_joint_training_changes_the_encoder(root: Path, joint: Run):
    encoder = Encoder.load(joint.context.output / "encoder", **ENCODER)

    assert encoder.fingerprint() == joint.report["fingerprint"]
    assert encoder.fingerprint() != load_base_encoder(root).fingerprint()


def test_best_dev_metric_is_that_of_the_saved_vectors(joint: Run):
    encoder = Encoder.load(joint.context.output / "encoder", **ENCODER)

    best_dev = dev_ndcg(joint.context, encoder, joint.document_vectors.vectors)

    assert best_dev == pytest.approx(joint.report["best_dev"])


def test_hierarchy_losses_are_added(root: Path):
    context = make_context(root, JOINT, hierarchy_weight=0.5)

    train.run(context)

    history = read_json(context.output / "history.json")
    first_row = next(row for row in history if "loss" in row)
    level_losses = []
    for name, value in first_row.items():
        if name.startswith("hierarchy_"):
            level_losses.append(value)
    assert level_losses
    expected = first_row["cross_entropy"] + 0.5 * sum(level_losses)
    assert first_row["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("supervision", "without_queries"), [("joint", 1), ("unsupervised", 4)])
def test_representatives_are_mean_training_queries(
    root: Path, supervision: str, without_queries: int
):
    run = run_training(make_context(root, FAST, supervision=supervision, steps=4))
    tables = TrainingTables.load(run.context)
    encoder = load_base_encoder(root)
    pairs = tables.training_data(run.context.settings["retriever"].training).pairs
    queries_of: dict[str, list[str]] = {name: [] for name in IDS}
    for query, passage in zip(pairs.queries, pairs.passages, strict=True):
        document = IDS[tables.passages.documents[passage]]
        queries_of[document].append(query)

    representatives = np.load(run.context.output / "document_vectors" / REPRESENTATIVES)

    for number, queries in enumerate(queries_of.values()):
        expected = run.document_vectors.vectors[number]
        if queries:
            expected = encoder.encode_queries(queries).mean(axis=0)
        np.testing.assert_allclose(representatives[number], expected, atol=1e-5)
    silent_documents = [name for name, queries in queries_of.items() if not queries]
    assert len(silent_documents) == without_queries
    assert QUIET in silent_documents
    assert run.report["documents_without_queries"] == without_queries


@pytest.mark.parametrize(("name", "settings"), [("frozen", FAST), ("joint", JOINT)])
def test_resumed_training_equals_uninterrupted(root, request, monkeypatch, name, settings):
    uninterrupted = request.getfixturevalue(name).context
    killed = make_context(root, settings)
    kill_stage_after(7, killed, monkeypatch)
    steps_done: list[int] = []

    def make_progress(label: str):
        def record_step(done: int, total: int, note: str = "") -> None:
            steps_done.append(done)

        return record_step

    train.run(replace(killed, progress=make_progress))

    # The first report is of the encoded queries; training itself does not start at step 1.
    assert 1 not in steps_done[1:]
    assert hash_path(killed.output) == hash_path(uninterrupted.output)


@pytest.mark.parametrize(("name", "settings"), [("frozen", FAST), ("joint", JOINT)])
def test_another_seed_gives_another_output(root, request, name, settings):
    context = request.getfixturevalue(name).context

    other_seed = run_training(make_context(root, settings, seed_offset=1)).context

    assert hash_path(other_seed.output) != hash_path(context.output)


def test_dev_queries_are_encoded_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    encode = Encoder.encode_queries
    text_counts = []

    def count_and_encode(encoder: Encoder, texts: list[str], *options: object) -> np.ndarray:
        text_counts.append(len(texts))
        return encode(encoder, texts, *options)

    context = make_context(root, FAST, steps=8)
    monkeypatch.setattr(Encoder, "encode_queries", count_and_encode)
    train.run(context)

    # There are 66 different training queries, two of which have two answers, and 24 dev queries.
    assert text_counts == [66, 24]


def test_vectors_of_another_encoder_are_not_used(root: Path, tmp_path: Path, frozen: Run):
    base = DenseIndex.load(root / "base_index")
    foreign = DenseIndex.build(base.vectors[::-1], base.document_ids, "another fingerprint")
    foreign.save(tmp_path)
    context = make_context(root, FAST, steps=1)
    inputs = dict(context.inputs)
    inputs["base_index"] = tmp_path

    report = train.run(replace(context, inputs=inputs))

    assert report["start_dev"] == frozen.report["start_dev"]


def test_hierarchy_loss_of_frozen_encoder_is_refused(root: Path):
    with pytest.raises(SettingsError, match="teaches the query encoder.*set hierarchy_weight: 0"):
        train.run(make_context(root, FAST, hierarchy_weight=0.2))


def test_cotraining_of_dsi_is_refused(root: Path):
    changes = {"cotraining": True, "evaluate_every": 2, "hierarchy_weight": 0.2}

    with pytest.raises(SettingsError, match="a dsi encodes none"):
        train.run(make_context(root, JOINT, **changes))


def test_document_length_may_exceed_the_positions(root: Path):
    """A dsi encodes no documents in training."""
    context = make_context(root, JOINT, query_max_tokens=64, document_max_tokens=65, steps=1)

    assert train.run(context)["steps"] == 1


def test_queries_beyond_the_positions_are_refused(root: Path):
    with pytest.raises(
        SettingsError, match="query_max_tokens is 65, but the encoder has positions for 64"
    ):
        train.run(make_context(root, JOINT, query_max_tokens=65))
