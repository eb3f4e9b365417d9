"""Guards that texts encoded in length-sorted parts are the texts encoded at once, in their order, with less padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model_code.training.buckets import bucketed, encode
from tests.model_code.training.example import WORDS, make_encoder


@pytest.mark.parametrize("batch_tokens", [1, 8, 20, 10_000])
def test_parts_give_the_same_vectors_and_gradients(tmp_path: Path, batch_tokens: int):
    encoder = make_encoder(tmp_path / "tiny")
    features = encoder.tokenize([" ".join(WORDS[: 1 + 3 * i % 7]) for i in range(9)])
    weights = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    results = []
    for vectors in (encoder(features), encode(encoder, bucketed(features, batch_tokens))):
        encoder.zero_grad()
        (weights * vectors).sum().backward()
        results.append((vectors.detach(), encoder.backbone.encoder.layer[0].output.dense.weight.grad.clone()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_parts_hold_their_budget_and_hardly_any_padding():
    mask = (torch.arange(20) < torch.arange(1, 21)[:, None]).long()
    buckets = bucketed({"input_ids": mask, "attention_mask": mask}, batch_tokens=40)
    assert all(part["input_ids"].numel() <= 40 for part in buckets.parts)
    assert sum(part["attention_mask"].numel() for part in buckets.parts) < 0.6 * mask.numel()
    assert sum(int(part["attention_mask"].sum()) for part in buckets.parts) == int(mask.sum())
