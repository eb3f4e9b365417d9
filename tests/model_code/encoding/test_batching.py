"""Guards the token batches: every row once, the budget kept, hardly any padding, and texts that are encoded in
length-sorted parts are the texts encoded at once, in their order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from model_code.encoding.batching import bucketed, encode, pad, token_batches
from tests.model_code.training.example import WORDS, make_encoder


def test_every_row_once_and_within_the_budget() -> None:
    chance = random.Random(0)
    for budget in (1, 64, 500):
        lengths = [chance.randint(2, 128) for _ in range(200)]
        batches = list(token_batches(lengths, budget))
        assert sorted(row for rows in batches for row in rows) == list(range(200))
        for rows in batches:
            assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


def test_sorting_leaves_hardly_any_padding() -> None:
    chance = random.Random(0)
    lengths = [chance.randint(2, 128) for _ in range(500)]
    padded = sum(len(rows) * max(lengths[row] for row in rows) for rows in token_batches(lengths, 1024))
    assert padded <= 1.05 * sum(lengths)


def test_padding_is_masked() -> None:
    features = pad([[3, 4, 5], [], [6]], padding=9)
    assert features["input_ids"].tolist() == [[3, 4, 5], [9, 9, 9], [6, 9, 9]]
    assert features["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]


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
