"""Guards that the objective is the sum of the parts that `losses` defines, and the training loop:
it learns, returns the best step, treats the control as HCE, stops when told, and re-clustering
keeps the encoder's moments while the centroids start anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import encode_buckets
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.contrastive import (
    Contrast,
    contrastive_losses,
)
from model_code.losses.hierarchy import level_losses
from model_code.training.batches import BatchSchedule, Collator
from model_code.training.data import TrainingData
from model_code.training.loop import latest_checkpoint
from model_code.training.optimisation import freeze_layers, make_optimizer
from model_code.training.trainer import Objective, Trainer, recluster
from tests.model_code.training.example import (
    NO_PAIRS,
    PARENTS,
    make_data,
    make_dev,
    make_encoder,
    make_settings,
    make_tree,
    say_dev,
    weights,
)
from tests.model_code.training.killing import kill_at


def build(tmp_path: Path, **changes):
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings(**changes)
    tree = make_tree(encoder.encode(data.passages.texts))
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(
        0, BatchSchedule(data, settings, seed=0)[0]
    )
    return Objective(encoder, settings, tree), batch, encoder, tree


@pytest.mark.parametrize("levels", [None, 1])
def test_the_loss_is_equations_6_and_7(tmp_path: Path, levels: int | None):
    objective, batch, encoder, tree = build(
        tmp_path, hierarchy_weight=0.3, hierarchy_levels=levels, temperature=0.1
    )
    queries, documents = (
        encode_buckets(encoder, batch.queries),
        encode_buckets(encoder, batch.documents),
    )
    losses = contrastive_losses(
        queries, documents[:6], 0.1, Contrast(batch.relevant, documents[6:], batch.allowed)
    )
    assert len(documents) > 6
    for t in range(levels or 2):
        centroids, parents = torch.from_numpy(tree.centroids[t]), torch.from_numpy(PARENTS[t])
        losses = losses + 0.3 * level_losses(queries, centroids, parents, batch.paths[:, t], 0.1)
    parts = objective(batch)
    torch.testing.assert_close(parts["loss"], losses[:3].mean() + 0.5 * losses[3:].mean())
    assert list(parts) == ["loss", "contrastive", "hierarchy_1", "hierarchy_2"][: 2 + (levels or 2)]


def test_without_weight_there_is_no_hierarchy(tmp_path: Path):
    objective, batch, _, _ = build(tmp_path, hierarchy_weight=0.0)
    assert objective.hierarchy is None
    assert list(objective(batch)) == ["loss", "contrastive"]
    assert all(name.startswith("encoder.") for name, _ in objective.named_parameters())


def test_scores_are_float32_under_autocast(tmp_path: Path):
    """Only the transformer runs in bfloat16: given its vectors, the loss is that of float32
    arithmetic.
    """
    objective, batch, encoder, _ = build(tmp_path, hierarchy_weight=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch)["loss"]
        queries, documents = (
            encode_buckets(encoder, batch.queries),
            encode_buckets(encoder, batch.documents),
        )
    losses = contrastive_losses(
        queries, documents[:6], 0.05, Contrast(batch.relevant, documents[6:], batch.allowed)
    )
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, losses[:3].mean() + 0.5 * losses[3:].mean(), rtol=1e-5, atol=1e-6
    )


def test_reclustering_replaces_the_centroids(tmp_path: Path):
    objective, _, _, _ = build(tmp_path)
    other = make_tree(np.random.default_rng(9).standard_normal((24, 32)))
    objective.recluster(other)
    for ours, theirs in zip(objective.hierarchy.centroids, other.centroids, strict=True):
        assert torch.equal(ours.detach(), torch.from_numpy(theirs))


def make_trainer(tmp_path: Path, dev: bool = True, **changes) -> Trainer:
    options = {
        key: changes.pop(key) for key in ("checkpoints", "progress", "cluster") if key in changes
    }
    encoder, data = make_encoder(tmp_path / "tiny"), make_data()
    tree = make_tree(encoder.encode(data.passages.texts))
    evaluator = make_dev(data.passages) if dev else None
    return Trainer(encoder, data, make_settings(**changes), 0, tree, evaluator, **options)


def test_training_lowers_the_loss_and_raises_the_metric(tmp_path: Path):
    often = {"log_every": 10, "evaluate_every": 20, "frozen_layers": None, "learning_rate": 1e-2}

    result = make_trainer(tmp_path, steps=60, **often).fit()

    losses = [row["loss"] for row in result.history if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    assert result.best_metric > result.history[0]["MRR@10"] + 0.2
    assert result.step == 60


def test_rows_of_the_history(tmp_path: Path):
    history = make_trainer(tmp_path).fit().history
    assert [row["step"] for row in history] == [0, 3, 4, 6, 8, 9, 12]
    assert [row["step"] for row in history if "MRR@10" in row] == [0, 4, 8, 12]
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
    at_step = {0: weights(trainer)}
    scores = iter(values)

    def score(*_: object) -> float:
        at_step.setdefault(trainer.state.step, weights(trainer))
        return next(scores)

    trainer.dev.score = score
    result = trainer.fit()
    assert result.best_step == best
    assert result.best_metric == max(values)
    assert result.step == 12
    assert torch.equal(weights(trainer), at_step[best])
    assert not torch.equal(weights(trainer), at_step[12])


def test_without_dev_queries_the_last_step_is_kept(tmp_path: Path):
    result = make_trainer(tmp_path, dev=False).fit()
    assert result.best_step == 12
    assert result.best_metric is None
    assert result.step == 12


def test_patience_ends_training(tmp_path: Path):
    trainer = make_trainer(tmp_path, patience=2, evaluate_every=2)
    trainer.dev.score = lambda *_: 0.5
    result = trainer.fit()
    assert result.best_step == 0
    assert result.step == 4


def test_start_vectors_save_encoding_the_corpus(tmp_path: Path):
    trainer = make_trainer(tmp_path, evaluate_every=None)
    vectors = trainer.encoder.encode(trainer.data.passages.texts)
    plain = make_trainer(tmp_path, evaluate_every=None).fit()
    calls = []
    encode_buckets = trainer.encoder.encode_documents
    trainer.encoder.encode_documents = lambda texts: (
        calls.append(trainer.state.step) or encode_buckets(texts)
    )
    assert trainer.fit(vectors).history == plain.history
    assert calls == [12]


def test_the_control_sees_the_same_pairs(tmp_path: Path):
    """Plain contrastive training differs from HCE in its loss, and not in its data."""
    hce = make_trainer(tmp_path)
    control = make_trainer(tmp_path, hierarchy_weight=0.0)
    assert len(hce.schedule) == len(control.schedule)
    for number in range(len(hce.schedule)):
        pairs = hce.schedule[number]
        assert pairs.tolist() == control.schedule[number].tolist()
        assert torch.equal(
            control.collate(number, pairs).allowed, hce.collate(number, pairs).allowed
        )
    assert set(control.fit().history[1]) == {"step", "loss", "contrastive", "learning_rate"}


def test_accumulated_batches_give_the_mean_gradient(tmp_path: Path):
    trainer = make_trainer(tmp_path, dev=False, accumulation=3, steps=1, warmup_share=0.0)
    seen = {}
    step = trainer.optimizer.step

    def spy() -> None:
        if trainer.accelerator.sync_gradients:
            seen.update(
                {
                    name: p.grad.clone()
                    for name, p in trainer.model.named_parameters()
                    if p.grad is not None
                }
            )
        step()

    trainer.optimizer.step = spy
    expected = make_trainer(tmp_path, dev=False, accumulation=3, steps=1)
    for number in range(3):
        (expected.model(expected.collate(number, expected.schedule[number]))["loss"] / 3).backward()
    trainer.fit()
    assert len(seen) > 5
    for name, parameter in expected.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(seen[name], parameter.grad)


def test_cotraining_reclusters_after_an_improvement(tmp_path: Path):
    clustered, trees = [], []

    def cluster(vectors: np.ndarray):
        clustered.append(vectors)
        trees.append(make_tree(vectors))
        return trees[-1]

    trainer = make_trainer(tmp_path, cotraining=True, cluster=cluster)
    say_dev(trainer, 0.1, 0.2, 0.2, 0.9)
    vectors = {}
    encode_buckets = trainer.encoder.encode_documents
    trainer.encoder.encode_documents = lambda texts: vectors.setdefault(
        trainer.state.step, encode_buckets(texts)
    )
    result = trainer.fit()
    assert result.reclustered_at == [4]
    assert len(clustered) == 1
    assert np.array_equal(clustered[0], vectors[4])
    assert trainer.hierarchy is trainer.negatives.hierarchy is trees[0]
    assert trainer.collate.negatives is trainer.negatives


@pytest.mark.parametrize(
    ("changes", "reclustered"),
    [
        ({"negatives": "siblings", "batches": "random"}, [4]),
        ({"negatives": "bm25", "batches": "siblings"}, [4]),
        # no tree to renew: the control under shared settings
        ({"negatives": "bm25", "batches": "random"}, []),
    ],
)
def test_cotraining_without_the_hierarchy_loss_renews_siblings_alone(
    tmp_path: Path, changes, reclustered
):
    def trainer(checkpoints: Path | None, *values: float) -> Trainer:
        settings = {"cotraining": True, "hierarchy_weight": 0.0, "checkpoint_every": 6} | changes
        made = make_trainer(tmp_path, cluster=make_tree, checkpoints=checkpoints, **settings)
        say_dev(made, *values)
        return made

    whole = trainer(None, 0.1, 0.2, 0.2, 0.2)
    assert whole.fit().reclustered_at == reclustered
    kill_at(trainer(tmp_path / "checkpoints", 0.1, 0.2, 0.2, 0.2), 7)
    resumed = trainer(tmp_path / "checkpoints", 0.2, 0.2)
    assert resumed.state.step == 6
    assert resumed.fit().reclustered_at == reclustered
    assert torch.equal(weights(resumed), weights(whole))


def test_a_finished_run_resumes_to_the_same_result(tmp_path: Path):
    first = make_trainer(tmp_path, checkpoints=tmp_path / "checkpoints")
    result = first.fit().to_json()
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step-12"
    again = make_trainer(tmp_path, checkpoints=tmp_path / "checkpoints")
    assert again.state.step == 12
    assert again.fit().to_json() == result
    assert torch.equal(weights(again), weights(first))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-12"]


def test_dropout_resumes_to_the_same_weights(tmp_path: Path):
    whole = make_trainer(tmp_path, dropout=0.3)
    whole.fit()
    kill_at(make_trainer(tmp_path, dropout=0.3, checkpoints=tmp_path / "checkpoints"), 6)
    resumed = make_trainer(tmp_path, dropout=0.3, checkpoints=tmp_path / "checkpoints")
    assert resumed.state.step == 4

    resumed.fit()

    assert torch.equal(weights(resumed), weights(whole))
    assert not whole.encoder.training


def test_dropout_changes_training_alone(tmp_path: Path):
    plain, dropped = (make_trainer(tmp_path, dropout=dropout).fit() for dropout in (0.0, 0.3))

    assert dropped.history[0] == plain.history[0]
    assert dropped.history[1]["loss"] != plain.history[1]["loss"]


def test_long_gradients_are_clipped(tmp_path: Path):
    trainer = make_trainer(tmp_path, dev=False, steps=1, clip_norm=0.01, accumulation=2)
    norms = []
    step = trainer.optimizer.step

    def record_norm() -> None:
        if trainer.accelerator.sync_gradients:
            gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
            norms.append(torch.nn.utils.get_total_norm(gradients).item())
        step()

    trainer.optimizer.step = record_norm
    trainer.fit()

    assert norms == [pytest.approx(0.01, rel=1e-3)]


def test_bfloat16_trains_alike_and_leaves_float32_weights(tmp_path: Path):
    plain = make_trainer(tmp_path, dev=False, steps=3, log_every=1)
    half = make_encoder(tmp_path / "tiny")
    half.precision = "bfloat16"
    rounded = Trainer(half, plain.data, plain.settings, 0, plain.hierarchy)
    losses = [[row["loss"] for row in trainer.fit().history] for trainer in (plain, rounded)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}


@pytest.mark.parametrize("seed_offset", [0, 1])
def test_equal_seeds_give_equal_weights(tmp_path: Path, seed_offset: int):
    runs = [make_trainer(tmp_path, dev=False, seed_offset=offset) for offset in (0, seed_offset)]
    for run in runs:
        run.fit()
    assert torch.equal(*map(weights, runs)) == (seed_offset == 0)


def test_wants_that_cannot_be_met_are_refused(tmp_path: Path):
    encoder, data = make_encoder(tmp_path / "tiny"), make_data()
    with pytest.raises(FreshetError, match="no training pair"):
        Trainer(encoder, TrainingData(data.passages, NO_PAIRS, NO_PAIRS), make_settings(), 0)
    with pytest.raises(FreshetError, match="need a hierarchy"):
        Trainer(encoder, data, make_settings(), 0)
    with pytest.raises(FreshetError, match="cotraining re-clusters"):
        Trainer(
            encoder,
            data,
            make_settings(cotraining=True),
            0,
            hierarchy=make_tree(np.eye(len(data.passages.texts))),
        )


def test_reclustering_keeps_the_encoders_moments(tmp_path: Path):
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings()
    freeze_layers(encoder.backbone, settings.frozen_layers)
    vectors = encoder.encode(data.passages.texts)
    tree = make_tree(vectors)
    objective = Objective(encoder, settings, tree)
    optimizer = make_optimizer(objective, settings)
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(
        0, BatchSchedule(data, settings, 0)[0]
    )
    objective(batch)["loss"].backward()
    optimizer.step()
    moments = {
        p: optimizer.state[p]["exp_avg"].clone()
        for p in encoder.parameters()
        if p in optimizer.state
    }

    smaller = Hierarchy(  # another number of nodes
        tuple(centroids[:1] for centroids in tree.centroids),
        (np.zeros(1, np.int32),) * 2,
        np.zeros(24, np.int32),
    )
    fresh = recluster(objective, optimizer, smaller, settings)
    assert len(moments) > 5
    for parameter, moment in moments.items():
        assert torch.equal(fresh.state[parameter]["exp_avg"], moment)
        assert fresh.state[parameter]["step"] == 1
    assert [parameter.shape for parameter in objective.hierarchy.parameters()] == [(1, 32), (1, 32)]
    assert not any(parameter in fresh.state for parameter in objective.hierarchy.parameters())
    assert {id(p) for g in fresh.param_groups for p in g["params"]} == {
        id(p) for p in objective.parameters() if p.requires_grad
    }
