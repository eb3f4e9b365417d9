"""Guards cached gradients: they are those of the whole batch in one pass, no activations are
stored, and dropout draws the same units when a text is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model_code.lexical.fit import SemiParametricObjective
from model_code.training.batches import BatchSchedule, Collator
from model_code.training.optimisation import set_dropout
from model_code.training.trainer import Objective
from tests.model_code.lexical.example import make_encoder as make_lexical_encoder
from tests.model_code.training.example import make_data, make_encoder, make_settings, make_tree


@pytest.fixture(autouse=True)
def keep_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute scores in float64, which encoder and objective otherwise turn into float32."""
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_objective(tmp_path: Path, kind: str, cached: bool):
    """Return a float64 objective, and a batch of 20 pairs in buckets of few texts."""
    dense = make_encoder(tmp_path / "tiny")
    data = make_data()
    tree = make_tree(dense.encode_documents(data.passages.texts))
    settings = make_settings(batch_size=20, cached_gradients=cached, hierarchy_weight=0.0)
    if kind == "hce":
        settings = settings.replace(hierarchy_weight=0.3)

    encoder = dense
    if kind == "lexical":
        encoder = make_lexical_encoder(tmp_path / "lexical", "mlm")
    collator = Collator(data, settings, encoder.tokenize, 0, tree, batch_tokens=32)
    batch = collator(0, BatchSchedule(data, settings, seed=0)[0])
    assert len(batch.documents.batches) > 5

    if kind == "lexical":
        return SemiParametricObjective(encoder, 8, settings).double(), batch
    return Objective(encoder, settings, tree).double(), batch


def gradients(objective: torch.nn.Module, batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a batch, and its gradients by the name of the weight."""
    torch.manual_seed(7)
    loss = objective(batch)["loss"]
    assert loss.dtype == torch.float64
    loss.backward()
    found = {}
    for name, weight in objective.named_parameters():
        if weight.grad is not None:
            found[name] = weight.grad
    return loss.detach(), found


@pytest.mark.parametrize("kind", ["dense", "hce", "lexical"])
def test_gradients_are_those_of_the_whole_batch(tmp_path: Path, kind: str):
    plain_loss, plain = gradients(*make_objective(tmp_path, kind, cached=False))
    cached_loss, cached = gradients(*make_objective(tmp_path, kind, cached=True))

    assert cached_loss == plain_loss
    assert cached.keys() == plain.keys()
    assert len(plain) > 20
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=0, atol=1e-12)


def test_dropout_repeats_its_draws(tmp_path: Path):
    found = []
    for cached in (False, True):
        objective, batch = make_objective(tmp_path, "dense", cached)
        set_dropout(objective.encoder.backbone, 0.5)
        found.append(gradients(objective.train(), batch))
    without_dropout = gradients(*make_objective(tmp_path, "dense", cached=True))

    (plain_loss, plain), (cached_loss, cached) = found
    assert cached_loss == plain_loss != without_dropout[0]
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=0, atol=1e-12)


def stored_numbers(tmp_path: Path, cached: bool) -> int:
    """Return how many numbers the forward pass keeps for the backward pass."""
    objective, batch = make_objective(tmp_path, "dense", cached)
    weights = {weight.data_ptr() for weight in objective.parameters()}
    counts = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            counts.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        objective(batch)
    return sum(counts)


def test_no_activations_are_stored(tmp_path: Path):
    assert stored_numbers(tmp_path, cached=True) < 0.2 * stored_numbers(tmp_path, cached=False)
