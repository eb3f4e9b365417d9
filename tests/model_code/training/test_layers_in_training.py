"""Guards training on several layers: the objective's loss is MLR's for each pooling, hierarchy and extra negatives stay
as they are, dev evaluation ranks by the best vector, and checkpoints and co-training know of the layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import encode, represent_documents
from model_code.encoding.settings import LayerSettings
from model_code.losses.contrastive import multi_vector_losses, self_contrastive_losses
from model_code.losses.hierarchy import level_losses
from model_code.training.batches import BatchSchedule, Collator
from model_code.training.trainer import Objective, Trainer
from tests.model_code.training.example import PARENTS, make_data, make_dev, make_encoder, make_settings, make_tree

POOLINGS = ["self_contrastive", "multi_vector"]
EVERY = pytest.mark.parametrize("pooling", POOLINGS)


def layers_of(pooling: str, *numbers: int) -> LayerSettings:
    return LayerSettings(numbers=numbers or (1,), pooling=pooling, regulariser=0.4)  # type: ignore[arg-type]


def build(tmp_path: Path, layers: LayerSettings, **changes):
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings(**changes)
    represent_documents(encoder, layers)
    tree = make_tree(encoder.encode(data.passages.texts))
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(0, BatchSchedule(data, settings, seed=0)[0])
    return Objective(encoder, settings, tree, layers), batch, encoder, tree


def expected_contrastive(pooling: str, encoder, batch) -> torch.Tensor:
    queries = encode(encoder, batch.queries)
    documents = encode(lambda part: encoder.layers_forward(part, (1, 2)), batch.documents)  # (B + E, 2, H)
    masks = (batch.relevant, documents[6:], batch.allowed)
    if pooling == "multi_vector":
        return multi_vector_losses(queries, documents[:6], 0.05, 1, *masks)
    return self_contrastive_losses(queries, documents[:6], 0.05, 1, 0.4, *masks)


@EVERY
def test_only_the_contrastive_part_changes(tmp_path: Path, pooling: str):
    objective, batch, encoder, tree = build(tmp_path, layers_of(pooling), hierarchy_weight=0.3)
    contrastive = expected_contrastive(pooling, encoder, batch)
    parts = objective(batch)
    torch.testing.assert_close(parts["contrastive"], contrastive.mean())
    losses, queries = contrastive, encode(encoder, batch.queries)
    for t in range(2):
        centroids, parents = torch.from_numpy(tree.centroids[t]), torch.from_numpy(PARENTS[t])
        losses = losses + 0.3 * level_losses(queries, centroids, parents, batch.paths[:, t], 0.05)
    torch.testing.assert_close(parts["loss"], losses[:3].mean() + 0.5 * losses[3:].mean())


@EVERY
def test_the_order_in_which_layers_are_named_is_indifferent(tmp_path: Path, pooling: str):
    losses = []
    for numbers in ((0, 1), (1, 0), (2, 0, 1), (1, 2, 0)):
        objective, batch, _, _ = build(tmp_path, layers_of(pooling, *numbers))
        losses.append(objective(batch)["loss"].item())
    assert losses == losses[:1] * 4


@EVERY
def test_the_last_layer_alone_is_ordinary_training(tmp_path: Path, pooling: str):
    objective, batch, _, _ = build(tmp_path, layers_of(pooling, 2))
    plain, _, _, _ = build(tmp_path, LayerSettings())
    torch.testing.assert_close(objective(batch)["loss"], plain(batch)["loss"], rtol=0, atol=0)


def train(tmp_path: Path, layers: LayerSettings, checkpoints: Path | None = None, **changes) -> Trainer:
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings(**changes)
    represent_documents(encoder, layers)
    dev, tree = make_dev(data.passages), make_tree(encoder.encode(data.passages.texts))
    return Trainer(encoder, data, settings, 0, tree, dev, make_tree, checkpoints, layers=layers)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_training_lowers_the_loss_and_raises_the_metric(tmp_path: Path, pooling: str):
    trainer = train(
        tmp_path, layers_of(pooling), steps=40, log_every=10, evaluate_every=20, frozen_layers=None, learning_rate=1e-2
    )
    result = trainer.fit()
    losses = [row["contrastive"] for row in result.history if "contrastive" in row]
    assert losses[-1] < 0.8 * losses[0]
    assert result.best_metric > result.history[0]["MRR@10"] + 0.1


def test_dev_evaluation_ranks_by_the_best_vector(tmp_path: Path):
    data, encoder = make_data(), make_encoder(tmp_path / "tiny")
    represent_documents(encoder, layers_of("multi_vector"))
    dev = make_dev(data.passages)
    rows = dev.encode_passages(encoder)
    assert rows.shape == (48, 32)
    reciprocal = []
    for text, relevant in zip(dev.queries, dev.qrels.values(), strict=True):
        query = encoder.encode([text])[0]
        best = [(-max(float(rows[2 * i] @ query), float(rows[2 * i + 1] @ query)), str(i)) for i in range(24)]
        rank = 1 + [document for _, document in sorted(best)].index(next(iter(relevant)))
        reciprocal.append(1 / rank if rank <= 10 else 0)
    assert dev.score(encoder.encode(dev.queries), rows) == pytest.approx(np.mean(reciprocal))


@pytest.mark.parametrize("most_passages", [None, 20])
def test_cotraining_clusters_the_last_layers_vectors(tmp_path: Path, most_passages: int | None):
    layers = layers_of("multi_vector")
    trainer = train(tmp_path, layers, cotraining=True)
    trainer.dev = make_dev(trainer.data.passages, **({"most_passages": most_passages} if most_passages else {}))
    seen = []

    def cluster(vectors: np.ndarray):
        np.testing.assert_allclose(vectors, trainer.encoder.encode(trainer.data.passages.texts), atol=2e-6)
        seen.append(len(vectors))
        return make_tree(vectors)

    trainer.cluster = cluster
    trainer.fit()
    assert set(seen) == {24}
