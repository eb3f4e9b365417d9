"""Guards which attention learns: plain products for short texts in bfloat16 on a CPU, on both sides, else the fused
one, with the same gradients, and nothing of it in what is saved. Architectures without the fused one train, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model_code.encoding.encoder import Encoder
from model_code.training.attention import SHORT, choose_attention
from model_code.training.trainer import Trainer
from tests.model_code.training.example import ASKS, WORDS, make_data, make_settings
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = ["open a file", "sort", "read a table of comma separated values and sort its rows"]


def load(folder: Path, precision: str) -> Encoder:
    make_tiny_encoder(folder, TEXTS)
    return Encoder.load(folder, 16, precision=precision, device="cpu")


def implementations(encoder: Encoder) -> set[str]:
    return {side.backbone.config._attn_implementation for side in encoder.sides}


@pytest.mark.parametrize(
    ("precision", "tokens", "expected"),
    [("bfloat16", SHORT, "eager"), ("bfloat16", SHORT + 1, "sdpa"), ("float32", SHORT, "sdpa")],
)
def test_where_plain_products_attend(tmp_path: Path, precision: str, tokens: int, expected: str) -> None:
    encoder = load(tmp_path / "tiny", precision)
    encoder.separate()
    choose_attention(encoder, tokens)
    assert implementations(encoder) == {expected}


def test_it_learns_the_same_and_is_not_saved(tmp_path: Path) -> None:
    fused, plain = load(tmp_path / "tiny", "float32"), load(tmp_path / "tiny", "float32")
    plain.precision = "bfloat16"
    choose_attention(plain, 16)
    assert implementations(plain) == {"eager"}
    gradients = []
    for encoder in (fused, plain):
        vectors = encoder(encoder.tokenize(TEXTS))  # outside of autocast both compute in float32
        (vectors @ torch.arange(vectors.shape[1], dtype=torch.float32)).sum().backward()
        weights = [weight.grad for weight in encoder.backbone.parameters() if weight.grad is not None]
        gradients.append(torch.cat([weight.flatten() for weight in weights]))
        encoder.save(tmp_path / encoder.precision)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)
    fingerprints = {Encoder.load(tmp_path / name, 16).fingerprint() for name in ("float32", "bfloat16")}
    configs = {(tmp_path / name / "config.json").read_bytes() for name in ("float32", "bfloat16")}
    assert len(fingerprints) == len(configs) == 1


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2"])
def test_what_has_no_fused_attention_trains(tmp_path: Path, kind: str) -> None:
    make_tiny_model(tmp_path / "base", kind, WORDS + ASKS, max_position_embeddings=66)
    encoder = Encoder.load(tmp_path / "base", 16, precision="bfloat16", device="cpu")
    before = encoder.fingerprint()
    settings = make_settings(hierarchy_weight=0.0, negatives="random", steps=2, evaluate_every=None)
    result = Trainer(encoder, make_data(), settings, seed=0).fit()
    assert result.steps == 2
    assert encoder.fingerprint() != before
    assert implementations(encoder) == {"eager"}
