"""Tests of the dense trainer.

The objective is the sum of the parts that `losses` defines. The training loop learns, returns the
best step, treats the control as HCE and stops when its patience ends. Re-clustering keeps the
encoder's moments, while the centroids start again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder, encode_buckets
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.contrastive import (
    Contrast,
    contrastive_losses,
)
from model_code.losses.hierarchy import level_losses
from model_code.retrieval.bm25_index import Bm25Index
from model_code.training.batches import BatchSchedule, Collator, TrainingBatch
from model_code.training.data import TrainingData
from model_code.training.loop import latest_checkpoint
from model_code.training.optimisation import freeze_layers, make_optimizer
from model_code.training.trainer import Objective, Trainer, recluster
from tests.model_code.training.example import (
    NO_PAIRS,
    PARENTS,
    encoder_weights,
    make_data,
    make_dev,
    make_encoder,
    make_settings,
    make_tree,
    set_dev_scores,
)
from tests.model_code.training.killing import kill_at


class TrainingStep(NamedTuple):
    """An objective, the first batch of its schedule, and what both were made of."""

    objective: Objective
    batch: TrainingBatch
    encoder: Encoder
    tree: Hierarchy


def make_step(tmp_path: Path, **changes) -> TrainingStep:
    """Make the objective and the first batch of the example under changed settings."""
    encoder = make_encoder(tmp_path / "tiny")
    data = make_data()
    settings = make_settings(**changes)
    tree = make_tree(encoder.encode_documents(data.passages.texts))

    first_pairs = BatchSchedule(data, settings, seed=0)[0]
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(0, first_pairs)
    return TrainingStep(Objective(encoder, settings, tree), batch, encoder, tree)


def make_trainer(tmp_path: Path, dev: bool = True, **changes) -> Trainer:
    """Make a trainer of the example; `changes` are settings or options of `Trainer`."""
    options = {}
    for name in ("checkpoints", "progress", "cluster"):
        if name in changes:
            options[name] = changes.pop(name)

    encoder = make_encoder(tmp_path / "tiny")
    data = make_data()
    tree = make_tree(encoder.encode_documents(data.passages.texts))
    evaluator = make_dev(data.passages) if dev else None
    return Trainer(encoder, data, make_settings(**changes), 0, tree, evaluator, **options)


def mean_loss_of_both_kinds(losses: torch.Tensor) -> torch.Tensor:
    """Weigh the three supervised pairs of a batch by 1, and its three pseudo-queries by 0.5."""
    supervised = losses[:3].mean()
    unsupervised = losses[3:].mean()
    return supervised + 0.5 * unsupervised


@pytest.mark.parametrize("levels", [None, 1])
def test_loss_follows_equations_6_and_7(tmp_path: Path, levels: int | None):
    objective, batch, encoder, tree = make_step(
        tmp_path, hierarchy_weight=0.3, hierarchy_levels=levels, temperature=0.1
    )
    level_count = levels or 2

    queries = encode_buckets(encoder, batch.queries)
    documents = encode_buckets(encoder, batch.documents)
    contrast = Contrast(batch.relevant, documents[6:], batch.allowed)
    losses = contrastive_losses(queries, documents[:6], 0.1, contrast)
    for level in range(level_count):
        centroids = torch.from_numpy(tree.centroids[level])
        parents = torch.from_numpy(PARENTS[level])
        losses = losses + 0.3 * level_losses(
            queries, centroids, parents, batch.paths[:, level], 0.1
        )

    # The batch has extra negatives, so the contrastive loss above used them.
    assert len(documents) > 6
    torch.testing.assert_close(objective(batch)["loss"], mean_loss_of_both_kinds(losses))


@pytest.mark.parametrize(
    ("levels", "hierarchy_losses"), [(None, ["hierarchy_1", "hierarchy_2"]), (1, ["hierarchy_1"])]
)
def test_each_level_has_its_own_loss(
    tmp_path: Path, levels: int | None, hierarchy_losses: list[str]
):
    step = make_step(tmp_path, hierarchy_weight=0.3, hierarchy_levels=levels)

    assert list(step.objective(step.batch)) == ["loss", "contrastive", *hierarchy_losses]


def test_without_weight_there_is_no_hierarchy(tmp_path: Path):
    step = make_step(tmp_path, hierarchy_weight=0.0)

    assert step.objective.hierarchy is None
    assert list(step.objective(step.batch)) == ["loss", "contrastive"]
    assert all(name.startswith("encoder.") for name, _ in step.objective.named_parameters())


def test_scores_are_float32_under_autocast(tmp_path: Path):
    """Only the transformer runs in bfloat16: from its vectors on, the loss is float32 arithmetic."""
    objective, batch, encoder, _ = make_step(tmp_path, hierarchy_weight=0.0)

    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch)["loss"]
        queries = encode_buckets(encoder, batch.queries)
        documents = encode_buckets(encoder, batch.documents)

    contrast = Contrast(batch.relevant, documents[6:], batch.allowed)
    losses = contrastive_losses(queries, documents[:6], 0.05, contrast)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, mean_loss_of_both_kinds(losses), rtol=1e-5, atol=1e-6)


def test_reclustering_replaces_the_centroids(tmp_path: Path):
    objective = make_step(tmp_path).objective
    new_tree = make_tree(np.random.default_rng(9).standard_normal((24, 32)))

    objective.recluster(new_tree)

    for centroids, expected in zip(objective.hierarchy.centroids, new_tree.centroids, strict=True):
        assert torch.equal(centroids.detach(), torch.from_numpy(expected))


def test_hierarchy_of_another_encoder_is_refused(tmp_path: Path):
    objective = make_step(tmp_path).objective
    other_tree = make_tree(np.random.default_rng(9).standard_normal((24, 8)))

    with pytest.raises(FreshetError, match="have 32 dimensions, and the hierarchy's have 8"):
        objective.recluster(other_tree)


def test_training_lowers_the_loss_and_raises_the_metric(tmp_path: Path):
    trainer = make_trainer(
        tmp_path, steps=60, log_every=10, evaluate_every=20, frozen_layers=None, learning_rate=1e-2
    )

    result = trainer.fit()

    losses = [row["loss"] for row in result.history if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    assert result.best_metric > result.history[0]["MRR@10"] + 0.2
    assert result.step == 60


def test_history_has_logged_and_evaluated_steps(tmp_path: Path):
    history = make_trainer(tmp_path).fit().history

    evaluated_steps = [row["step"] for row in history if "MRR@10" in row]
    assert [row["step"] for row in history] == [0, 3, 4, 6, 8, 9, 12]
    assert evaluated_steps == [0, 4, 8, 12]
    assert set(history[1]) == {
        "step",
        "loss",
        "contrastive",
        "hierarchy_1",
        "hierarchy_2",
        "learning_rate",
    }


@pytest.mark.parametrize(("values", "best"), [([0.2, 0.6, 0.6, 0.1], 4), ([0.9, 0.5, 0.4, 0.3], 0)])
def test_best_step_is_returned(tmp_path: Path, values: list[float], best: int):
    trainer = make_trainer(tmp_path, evaluate_every=4)
    weights_at_step = {0: encoder_weights(trainer)}
    scores = iter(values)

    def record_weights_and_score(*_: object) -> float:
        weights_at_step.setdefault(trainer.state.step, encoder_weights(trainer))
        return next(scores)

    trainer.dev.score = record_weights_and_score
    result = trainer.fit()

    assert result.best_step == best
    assert result.best_metric == max(values)
    assert result.step == 12
    assert torch.equal(encoder_weights(trainer), weights_at_step[best])
    assert not torch.equal(encoder_weights(trainer), weights_at_step[12])


def test_without_dev_queries_the_last_step_is_kept(tmp_path: Path):
    result = make_trainer(tmp_path, dev=False).fit()

    assert result.best_step == 12
    assert result.best_metric is None
    assert result.step == 12


def test_patience_ends_training(tmp_path: Path):
    trainer = make_trainer(tmp_path, patience=2, evaluate_every=2)
    set_dev_scores(trainer, 0.5, 0.5, 0.5)

    result = trainer.fit()

    assert result.best_step == 0
    assert result.step == 4


def test_start_vectors_save_encoding_the_corpus(tmp_path: Path):
    expected_history = make_trainer(tmp_path, evaluate_every=None).fit().history
    trainer = make_trainer(tmp_path, evaluate_every=None)
    start_vectors = trainer.encoder.encode_documents(trainer.data.passages.texts)
    encode_documents = trainer.encoder.encode_documents
    encoded_at_steps = []

    def record_step_and_encode(texts):
        encoded_at_steps.append(trainer.state.step)
        return encode_documents(texts)

    trainer.encoder.encode_documents = record_step_and_encode
    history = trainer.fit(start_vectors).history

    assert history == expected_history
    assert encoded_at_steps == [12]


def test_control_sees_the_same_pairs(tmp_path: Path):
    hce = make_trainer(tmp_path)
    control = make_trainer(tmp_path, hierarchy_weight=0.0)

    assert len(hce.schedule) == len(control.schedule)
    for number in range(len(hce.schedule)):
        pairs = hce.schedule[number]
        hce_batch = hce.collate(number, pairs)
        control_batch = control.collate(number, pairs)
        assert pairs.tolist() == control.schedule[number].tolist()
        assert torch.equal(control_batch.allowed, hce_batch.allowed)


def test_control_has_no_hierarchy_loss(tmp_path: Path):
    control = make_trainer(tmp_path, hierarchy_weight=0.0)

    history = control.fit().history

    assert set(history[1]) == {"step", "loss", "contrastive", "learning_rate"}


def call_before_optimizer_step(trainer: Trainer, record) -> None:
    """Call `record` before each optimizer step that ends an accumulation."""
    step = trainer.optimizer.step

    def record_and_step() -> None:
        if trainer.accelerator.sync_gradients:
            record()
        step()

    trainer.optimizer.step = record_and_step


def test_accumulated_batches_give_the_mean_gradient(tmp_path: Path):
    trainer = make_trainer(tmp_path, dev=False, accumulation=3, steps=1, warmup_share=0.0)
    gradients = {}

    def record_gradients() -> None:
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()

    call_before_optimizer_step(trainer, record_gradients)
    trainer.fit()

    expected = make_trainer(tmp_path, dev=False, accumulation=3, steps=1)
    for number in range(3):
        batch = expected.collate(number, expected.schedule[number])
        third_of_loss = expected.model(batch)["loss"] / 3
        third_of_loss.backward()

    assert len(gradients) > 5
    for name, parameter in expected.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad)


def test_cotraining_reclusters_after_an_improvement(tmp_path: Path):
    clustered = []
    trees = []

    def cluster(vectors: np.ndarray) -> Hierarchy:
        tree = make_tree(vectors)
        clustered.append(vectors)
        trees.append(tree)
        return tree

    trainer = make_trainer(tmp_path, cotraining=True, cluster=cluster)
    set_dev_scores(trainer, 0.1, 0.2, 0.2, 0.9)
    vectors_at_step = {}
    encode_documents = trainer.encoder.encode_documents

    def encode_and_record(texts):
        vectors = encode_documents(texts)
        return vectors_at_step.setdefault(trainer.state.step, vectors)

    trainer.encoder.encode_documents = encode_and_record
    result = trainer.fit()

    assert result.reclustered_at == [4]
    assert len(clustered) == 1
    assert np.array_equal(clustered[0], vectors_at_step[4])
    assert trainer.hierarchy is trees[0]
    assert trainer.negatives.hierarchy is trees[0]
    assert trainer.collate.negatives is trainer.negatives


@pytest.mark.parametrize(
    ("changes", "reclustered_at"),
    [
        ({"negatives": "siblings", "batches": "random"}, [4]),
        ({"negatives": "bm25", "batches": "siblings"}, [4]),
        # The control under shared settings has no tree to renew.
        ({"negatives": "bm25", "batches": "random"}, []),
    ],
)
def test_cotraining_without_hierarchy_loss_renews_siblings(tmp_path: Path, changes, reclustered_at):
    settings = {"cotraining": True, "hierarchy_weight": 0.0, "checkpoint_every": 6}
    settings.update(changes)
    checkpoints = tmp_path / "checkpoints"
    whole = make_trainer(tmp_path, cluster=make_tree, **settings)
    set_dev_scores(whole, 0.1, 0.2, 0.2, 0.2)
    killed = make_trainer(tmp_path, cluster=make_tree, checkpoints=checkpoints, **settings)
    set_dev_scores(killed, 0.1, 0.2, 0.2, 0.2)

    whole_result = whole.fit()
    kill_at(killed, 7)
    resumed = make_trainer(tmp_path, cluster=make_tree, checkpoints=checkpoints, **settings)
    set_dev_scores(resumed, 0.2, 0.2)
    resumed_from = resumed.state.step
    resumed_result = resumed.fit()

    assert whole_result.reclustered_at == reclustered_at
    assert resumed_from == 6
    assert resumed_result.reclustered_at == reclustered_at
    assert torch.equal(encoder_weights(resumed), encoder_weights(whole))


# Co-training replaces the negatives in the middle of the training.
def test_workers_do_not_change_the_training(tmp_path: Path):
    alone = make_trainer(tmp_path, cotraining=True, cluster=make_tree)
    helped = make_trainer(tmp_path, cotraining=True, cluster=make_tree, workers=2)
    for trainer in (alone, helped):
        set_dev_scores(trainer, 0.1, 0.2, 0.3, 0.4)

    alone.fit()
    helped.fit()

    assert helped.state.reclustered_at == alone.state.reclustered_at
    assert torch.equal(encoder_weights(helped), encoder_weights(alone))


def test_workers_share_one_bm25_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "builds"
    build = Bm25Index.build

    def build_and_log(*arguments: Any) -> Bm25Index:
        with log.open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        return build(*arguments)

    monkeypatch.setattr(Bm25Index, "build", build_and_log)
    trainer = make_trainer(tmp_path, negatives="bm25", workers=2, steps=2)

    trainer.fit()

    assert log.read_text() == f"{os.getpid()}\n"


def test_finished_run_resumes_to_the_same_result(tmp_path: Path):
    checkpoints = tmp_path / "checkpoints"
    first = make_trainer(tmp_path, checkpoints=checkpoints)
    first_result = first.fit().to_json()
    last_checkpoint = latest_checkpoint(checkpoints)

    again = make_trainer(tmp_path, checkpoints=checkpoints)
    resumed_from = again.state.step
    again_result = again.fit().to_json()

    assert last_checkpoint.name == "step-12"
    assert resumed_from == 12
    assert again_result == first_result
    assert torch.equal(encoder_weights(again), encoder_weights(first))
    assert [path.name for path in checkpoints.iterdir()] == ["step-12"]


def test_dropout_resumes_to_the_same_weights(tmp_path: Path):
    checkpoints = tmp_path / "checkpoints"
    whole = make_trainer(tmp_path, dropout=0.3)
    whole.fit()
    kill_at(make_trainer(tmp_path, dropout=0.3, checkpoints=checkpoints), 6)
    resumed = make_trainer(tmp_path, dropout=0.3, checkpoints=checkpoints)
    resumed_from = resumed.state.step

    resumed.fit()

    assert resumed_from == 4
    assert torch.equal(encoder_weights(resumed), encoder_weights(whole))
    assert not whole.encoder.training


def test_dropout_does_not_change_evaluation(tmp_path: Path):
    plain = make_trainer(tmp_path, dropout=0.0).fit()
    with_dropout = make_trainer(tmp_path, dropout=0.3).fit()

    # The first row evaluates the untrained encoder, the second is a training loss.
    assert with_dropout.history[0] == plain.history[0]
    assert with_dropout.history[1]["loss"] != plain.history[1]["loss"]


def test_long_gradients_are_clipped(tmp_path: Path):
    trainer = make_trainer(tmp_path, dev=False, steps=1, clip_norm=0.01, accumulation=2)
    norms = []

    def record_norm() -> None:
        gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())

    call_before_optimizer_step(trainer, record_norm)
    trainer.fit()

    assert norms == [pytest.approx(0.01, rel=1e-3)]


def test_bfloat16_trains_float32_weights(tmp_path: Path):
    exact = make_trainer(tmp_path, dev=False, steps=3, log_every=1)
    encoder = make_encoder(tmp_path / "tiny")
    encoder.precision = "bfloat16"
    rounded = Trainer(encoder, exact.data, exact.settings, 0, exact.hierarchy)

    exact_losses = [row["loss"] for row in exact.fit().history]
    rounded_losses = [row["loss"] for row in rounded.fit().history]

    assert rounded_losses != exact_losses
    assert rounded_losses == pytest.approx(exact_losses, rel=0.05)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(("seed_offset", "equal"), [(0, True), (1, False)])
def test_equal_seeds_give_equal_weights(tmp_path: Path, seed_offset: int, equal: bool):
    first = make_trainer(tmp_path, dev=False, seed_offset=0)
    second = make_trainer(tmp_path, dev=False, seed_offset=seed_offset)

    first.fit()
    second.fit()

    assert torch.equal(encoder_weights(first), encoder_weights(second)) == equal


def test_training_without_pairs_is_refused(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    data = TrainingData(make_data().passages, NO_PAIRS, NO_PAIRS)

    with pytest.raises(FreshetError, match="no training pair"):
        Trainer(encoder, data, make_settings(), 0)


def test_hierarchy_loss_without_hierarchy_is_refused(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")

    with pytest.raises(FreshetError, match="need a hierarchy"):
        Trainer(encoder, make_data(), make_settings(), 0)


def test_cotraining_without_clustering_is_refused(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    data = make_data()
    tree = make_tree(np.eye(len(data.passages.texts)))

    with pytest.raises(FreshetError, match="cotraining re-clusters"):
        Trainer(encoder, data, make_settings(cotraining=True), 0, hierarchy=tree)


def make_smaller_tree(tree: Hierarchy) -> Hierarchy:
    """Make a tree with a single node at each of the two levels."""
    centroids = tuple(level[:1] for level in tree.centroids)
    parents = (np.zeros(1, np.int32), np.zeros(1, np.int32))
    return Hierarchy(centroids, parents, np.zeros(24, np.int32))


def test_reclustering_keeps_the_encoders_moments(tmp_path: Path):
    settings = make_settings()
    objective, batch, encoder, tree = make_step(tmp_path)
    freeze_layers(encoder.backbone, settings.frozen_layers)
    optimizer = make_optimizer(objective, settings)
    objective(batch)["loss"].backward()
    optimizer.step()
    moments = {}
    for parameter in encoder.parameters():
        if parameter in optimizer.state:
            moments[parameter] = optimizer.state[parameter]["exp_avg"].clone()

    new_optimizer = recluster(objective, optimizer, make_smaller_tree(tree), settings)

    assert len(moments) > 5
    for parameter, moment in moments.items():
        assert torch.equal(new_optimizer.state[parameter]["exp_avg"], moment)
        assert new_optimizer.state[parameter]["step"] == 1


def test_reclustering_starts_centroids_without_moments(tmp_path: Path):
    settings = make_settings()
    objective, batch, encoder, tree = make_step(tmp_path)
    freeze_layers(encoder.backbone, settings.frozen_layers)
    optimizer = make_optimizer(objective, settings)
    objective(batch)["loss"].backward()
    optimizer.step()

    new_optimizer = recluster(objective, optimizer, make_smaller_tree(tree), settings)

    centroids = list(objective.hierarchy.parameters())
    assert [parameter.shape for parameter in centroids] == [(1, 32), (1, 32)]
    assert not any(parameter in new_optimizer.state for parameter in centroids)

    optimized = set()
    for group in new_optimizer.param_groups:
        optimized.update(id(parameter) for parameter in group["params"])
    trainable = {id(parameter) for parameter in objective.parameters() if parameter.requires_grad}
    assert optimized == trainable
