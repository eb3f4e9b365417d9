"""Test training on several layers (MLR).

Each pooling changes only the contrastive part of the loss. Training learns, dev evaluation ranks
by the best vector, and co-training clusters the last layer's vectors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder, encode_buckets
from model_code.losses.contrastive import Contrast
from model_code.losses.hierarchy import level_losses
from model_code.mlr.losses import multi_vector_losses, self_contrastive_losses
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import make_pair_loss, set_indexed_layers
from model_code.training.batches import BatchSchedule, Collator, TrainingBatch
from model_code.training.trainer import Objective, Trainer
from tests.model_code.training.example import (
    PARENTS,
    make_data,
    make_dev,
    make_encoder,
    make_settings,
    make_tree,
    set_dev_scores,
)

PAIRS_PER_BATCH = 6
REGULARISER = 0.4
TEMPERATURE = 0.05
every_pooling = pytest.mark.parametrize("pooling", ["self_contrastive", "multi_vector"])


def make_layers(pooling: str, *numbers: int) -> LayerSettings:
    return LayerSettings(numbers=numbers or (1,), pooling=pooling, regulariser=REGULARISER)


def make_objective(tmp_path: Path, layers: LayerSettings, **changes):
    """An objective with a batch, its encoder and its tree."""
    encoder = make_encoder(tmp_path / "tiny")
    data = make_data()
    settings = make_settings(**changes)
    set_indexed_layers(encoder, layers)
    tree = make_tree(encoder.encode_documents_by_last_layer(data.passages.texts))
    pairs = BatchSchedule(data, settings, seed=0)[0]
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(0, pairs)
    pair_loss = make_pair_loss(encoder, layers)
    return Objective(encoder, settings, tree, pair_loss), batch, encoder, tree


def make_layer_trainer(tmp_path: Path, layers: LayerSettings, cluster=None, **changes) -> Trainer:
    encoder = make_encoder(tmp_path / "tiny")
    data = make_data()
    set_indexed_layers(encoder, layers)
    tree = make_tree(encoder.encode_documents_by_last_layer(data.passages.texts))
    return Trainer(
        encoder,
        data,
        make_settings(**changes),
        0,
        tree,
        make_dev(data.passages),
        cluster=cluster,
        pair_loss=make_pair_loss(encoder, layers),
    )


def expected_contrastive(pooling: str, encoder: Encoder, batch: TrainingBatch) -> torch.Tensor:
    queries = encode_buckets(encoder, batch.queries)

    def encode_layers(tokens: dict[str, torch.Tensor]) -> torch.Tensor:
        return encoder.layers_forward(tokens, (1, 2))

    documents = encode_buckets(encode_layers, batch.documents)
    positives = documents[:PAIRS_PER_BATCH]
    negatives = documents[PAIRS_PER_BATCH:]
    contrast = Contrast(batch.relevant, negatives, batch.allowed)
    if pooling == "multi_vector":
        return multi_vector_losses(queries, positives, TEMPERATURE, contrast, last=1)
    return self_contrastive_losses(
        queries, positives, TEMPERATURE, contrast, last=1, regulariser=REGULARISER
    )


@every_pooling
def test_only_the_contrastive_part_changes(tmp_path: Path, pooling: str):
    objective, batch, encoder, tree = make_objective(
        tmp_path, make_layers(pooling), hierarchy_weight=0.3
    )
    contrastive = expected_contrastive(pooling, encoder, batch)
    queries = encode_buckets(encoder, batch.queries)
    losses = contrastive
    for level in range(2):
        centroids = torch.from_numpy(tree.centroids[level])
        parents = torch.from_numpy(PARENTS[level])
        nodes = batch.paths[:, level]
        losses = losses + 0.3 * level_losses(queries, centroids, parents, nodes, TEMPERATURE)

    parts = objective(batch)

    torch.testing.assert_close(parts["contrastive"], contrastive.mean())
    torch.testing.assert_close(parts["loss"], losses[:3].mean() + 0.5 * losses[3:].mean())


@every_pooling
def test_the_order_of_layer_numbers_is_indifferent(tmp_path: Path, pooling: str):
    losses = []
    for numbers in ((0, 1), (1, 0), (2, 0, 1), (1, 2, 0)):
        objective, batch, _, _ = make_objective(tmp_path, make_layers(pooling, *numbers))
        losses.append(objective(batch)["loss"].item())

    assert losses == losses[:1] * 4


@every_pooling
def test_the_last_layer_alone_is_ordinary_training(tmp_path: Path, pooling: str):
    objective, batch, _, _ = make_objective(tmp_path, make_layers(pooling, 2))
    plain, _, _, _ = make_objective(tmp_path, LayerSettings())

    torch.testing.assert_close(objective(batch)["loss"], plain(batch)["loss"], rtol=0, atol=0)


@every_pooling
def test_training_lowers_the_loss_and_raises_the_metric(tmp_path: Path, pooling: str):
    changes = {"log_every": 10, "evaluate_every": 20, "frozen_layers": None, "learning_rate": 1e-2}

    result = make_layer_trainer(tmp_path, make_layers(pooling), steps=40, **changes).fit()

    losses = [row["contrastive"] for row in result.history if "contrastive" in row]
    assert losses[-1] < 0.8 * losses[0]
    assert result.best_metric > result.history[0]["MRR@10"] + 0.1
    assert result.step == 40


def test_dev_evaluation_ranks_by_the_best_vector(tmp_path: Path):
    data = make_data()
    encoder = make_encoder(tmp_path / "tiny")
    set_indexed_layers(encoder, make_layers("multi_vector"))
    dev = make_dev(data.passages)
    rows = encoder.encode_documents(dev.texts)
    reciprocal_ranks = []
    for text, relevant in zip(dev.queries, dev.qrels.values(), strict=True):
        query = encoder.encode_queries([text])[0]
        scored = []
        for i in range(24):
            best_score = max(float(rows[2 * i] @ query), float(rows[2 * i + 1] @ query))
            scored.append((-best_score, str(i)))
        ranking = [document for _, document in sorted(scored)]
        rank = 1 + ranking.index(next(iter(relevant)))
        reciprocal_rank = 1 / rank if rank <= 10 else 0
        reciprocal_ranks.append(reciprocal_rank)

    score = dev.score(encoder.encode_queries(dev.queries), rows)

    assert rows.shape == (48, 32)
    assert score == pytest.approx(np.mean(reciprocal_ranks))


@pytest.mark.parametrize("dev_passages", [None, 10])
def test_cotraining_clusters_last_layer_vectors(tmp_path: Path, dev_passages: int | None):
    """All passages are clustered, even if dev evaluation ranks a sample of them."""
    trainer = make_layer_trainer(
        tmp_path, make_layers("multi_vector"), cotraining=True, cluster=make_tree
    )
    trainer.dev = make_dev(trainer.data.passages, max_queries=3, max_passages=dev_passages)
    set_dev_scores(trainer, 0.1, 0.2, 0.2, 0.2)
    clustered = []

    def cluster(vectors: np.ndarray):
        last_layer = trainer.encoder.encode_documents_by_last_layer(trainer.data.passages.texts)
        np.testing.assert_allclose(vectors, last_layer, atol=2e-6)
        clustered.append(len(vectors))
        return make_tree(vectors)

    trainer.cluster = cluster
    trainer.fit()

    assert len(trainer.dev.rows) == (dev_passages or 24)
    assert clustered == [24]
