"""Guards that the objective is the sum of the parts that `losses` defines, with weight, levels and precision as set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.batching import encode
from model_code.losses.contrastive import contrastive_losses
from model_code.losses.hierarchy import level_losses
from model_code.training.batches import BatchSchedule, Collator
from model_code.training.objective import Objective
from tests.model_code.training.example import PARENTS, make_data, make_encoder, make_settings, make_tree


def build(tmp_path: Path, **changes):
    encoder, data, settings = make_encoder(tmp_path / "tiny"), make_data(), make_settings(**changes)
    tree = make_tree(encoder.encode(data.passages.texts))
    batch = Collator(data, settings, encoder.tokenize, 0, tree)(0, BatchSchedule(data, settings, seed=0)[0])
    return Objective(encoder, settings, tree), batch, encoder, tree


@pytest.mark.parametrize("levels", [None, 1])
def test_the_loss_is_equations_6_and_7(tmp_path: Path, levels: int | None):
    objective, batch, encoder, tree = build(tmp_path, hierarchy_weight=0.3, hierarchy_levels=levels, temperature=0.1)
    queries, documents = encode(encoder, batch.queries), encode(encoder, batch.documents)
    losses = contrastive_losses(queries, documents[:6], 0.1, batch.relevant, documents[6:], batch.allowed)
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
    """Only the transformer runs in bfloat16: given its vectors, the loss is that of float32 arithmetic."""
    objective, batch, encoder, _ = build(tmp_path, hierarchy_weight=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch)["loss"]
        queries, documents = encode(encoder, batch.queries), encode(encoder, batch.documents)
    losses = contrastive_losses(queries, documents[:6], 0.05, batch.relevant, documents[6:], batch.allowed)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, losses[:3].mean() + 0.5 * losses[3:].mean(), rtol=1e-5, atol=1e-6)


def test_reclustering_replaces_the_centroids(tmp_path: Path):
    objective, _, _, _ = build(tmp_path)
    other = make_tree(np.random.default_rng(9).standard_normal((24, 32)))
    objective.recluster(other)
    for ours, theirs in zip(objective.hierarchy.centroids, other.centroids, strict=True):
        assert torch.equal(ours.detach(), torch.from_numpy(theirs))
