"""Guards what learns and how fast: frozen layers (which store nothing for the backward pass),
groups and rates; which attention learns; which GPU trains; and that texts longer than the encoder
has positions for are refused by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from model_code.encoding.encoder import Encoder
from model_code.errors import SettingsError
from model_code.training.optimisation import (
    MAX_EAGER_ATTENTION_TOKENS,
    freeze_layers,
    learning_rate_factor,
    make_accelerator,
    make_optimizer,
    select_attention,
    set_dropout,
    set_learning_rate,
    transformer_layers,
)
from model_code.training.trainer import Objective, Trainer
from tests.model_code.training.example import (
    ASKS,
    WORDS,
    make_data,
    make_encoder,
    make_settings,
    make_tree,
)
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = ["open a file", "sort", "read a table of comma separated values and sort its rows"]
PLAIN = {"hierarchy_weight": 0.0, "negatives": "bm25"}


def learning(backbone) -> set[str]:
    return {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}


def test_frozen_layers_and_embeddings_do_not_learn(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone
    freeze_layers(backbone, 1)
    assert {name.split(".")[2] for name in learning(backbone)} == {"1"}
    freeze_layers(backbone, 0)
    assert {name.split(".layer.")[0] for name in learning(backbone)} == {"encoder"}
    freeze_layers(backbone, None)
    assert any("embeddings" in name for name in learning(backbone))
    assert not any("pooler" in name for name in learning(backbone))
    with pytest.raises(
        SettingsError, match="frozen_layers is 2, but the encoder has only 2 layers"
    ):
        freeze_layers(backbone, 2)


def test_frozen_layers_store_nothing_for_the_backward_pass(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    freeze_layers(encoder.backbone, 1)
    outputs = []
    for layer in transformer_layers(encoder.backbone):
        layer.register_forward_hook(lambda _, __, output: outputs.append(output))
    encoder(encoder.tokenize(["word1 word2"]))
    lower, upper = (output[0] if isinstance(output, tuple) else output for output in outputs)
    assert not lower.requires_grad
    assert upper.requires_grad


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2", "modernbert", "bert"])
def test_frozen_layers_keep_their_output(tmp_path: Path, kind: str):
    """Relative positions are registered after the layers, but every frozen layer reads them."""
    words = [f"word{number}" for number in range(20)]
    changes = {"relative_attention": True} if kind == "deberta-v2" else {}
    make_tiny_model(tmp_path / kind, kind, words, max_position_embeddings=66, **changes)
    encoder = Encoder.load(tmp_path / kind, 16, precision="float32", device="cpu")
    backbone, features = encoder.backbone, encoder.tokenize(["word1 word2 word3"])
    freeze_layers(backbone, 1)
    inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
    before = backbone(**inputs, output_hidden_states=True).hidden_states
    before[-1].square().sum().backward()
    torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1).step()
    after = backbone(**inputs, output_hidden_states=True).hidden_states
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])


def test_unused_parameters_in_frozen_layers_are_frozen(tmp_path: Path):
    """Longformer's global attention is used only where a text asks for it."""
    changes = {"attention_window": 4, "max_position_embeddings": 66}
    make_tiny_model(tmp_path / "base", "longformer", ["word1"], **changes)
    backbone = AutoModel.from_pretrained(tmp_path / "base")
    freeze_layers(backbone, 1)
    assert {name.split(".")[2] for name in learning(backbone)} == {"1"}


def test_groups_have_their_own_rate_and_decay(tmp_path: Path):
    encoder, settings = make_encoder(tmp_path / "tiny"), make_settings(centroid_learning_rate=0.5)
    freeze_layers(encoder.backbone, 1)
    objective = Objective(
        encoder, settings, make_tree(np.random.default_rng(0).standard_normal((24, 32)))
    )
    matrices, vectors, centroids = make_optimizer(objective, settings).param_groups
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}
    assert [p.shape[0] for p in centroids["params"]] == [2, 6]
    assert [group["weight_decay"] for group in (matrices, vectors, centroids)] == [0.01, 0.0, 0.0]
    assert [group["lr"] for group in (matrices, vectors, centroids)] == [1e-3, 1e-3, 0.5]
    assert len(matrices["params"]) + len(vectors["params"]) == len(learning(encoder.backbone))


def test_rate_zero_freezes_the_centroids(tmp_path: Path):
    encoder, settings = make_encoder(tmp_path / "tiny"), make_settings(centroid_learning_rate=0)
    tree = make_tree(np.random.default_rng(0).standard_normal((24, 32)))

    objective = Objective(encoder, settings, tree)

    assert len(make_optimizer(objective, settings).param_groups) == 2
    assert not any(centroids.requires_grad for centroids in objective.hierarchy.parameters())


def test_dropout_is_set_everywhere(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone

    set_dropout(backbone, 0.25)

    layers = [module for module in backbone.modules() if isinstance(module, torch.nn.Dropout)]
    assert {layer.p for layer in layers} == {0.25}


def test_dropout_without_dropout_layers_is_refused():
    with pytest.raises(
        SettingsError, match=r"dropout is 0\.25, but a Linear has no dropout layers"
    ):
        set_dropout(torch.nn.Linear(1, 1), 0.25)


def test_every_group_keeps_its_share_of_the_schedule():
    optimizer = torch.optim.AdamW(
        [{"params": [torch.zeros(1)], "lr": rate, "peak": rate} for rate in (1.0, 4.0)]
    )
    set_learning_rate(optimizer, 0.5)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 1.0]


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.1), (10, 0.0), (10, 0.3), (7, 0.99)])
def test_learning_rate_rises_and_falls(steps: int, warmup: float):
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    peak = int(np.argmax(factors))
    assert max(factors) == 1.0
    assert min(factors) > 0
    assert factors == sorted(factors[: peak + 1]) + sorted(factors[peak + 1 :], reverse=True)


def load(folder: Path, precision: str) -> Encoder:
    make_tiny_encoder(folder, TEXTS)
    return Encoder.load(folder, 16, precision=precision, device="cpu")


def implementations(encoder: Encoder) -> set[str]:
    return {encoder.backbone.config._attn_implementation}


@pytest.mark.parametrize(
    ("precision", "tokens", "expected"),
    [
        ("bfloat16", MAX_EAGER_ATTENTION_TOKENS, "eager"),
        ("bfloat16", MAX_EAGER_ATTENTION_TOKENS + 1, "sdpa"),
        ("float32", MAX_EAGER_ATTENTION_TOKENS, "sdpa"),
    ],
)
def test_where_plain_products_attend(
    tmp_path: Path, precision: str, tokens: int, expected: str
) -> None:
    encoder = load(tmp_path / "tiny", precision)
    select_attention(encoder, tokens)
    assert implementations(encoder) == {expected}


def test_it_learns_the_same_and_is_not_saved(tmp_path: Path) -> None:
    fused, plain = load(tmp_path / "tiny", "float32"), load(tmp_path / "tiny", "float32")
    plain.precision = "bfloat16"
    select_attention(plain, 16)
    assert implementations(plain) == {"eager"}
    gradients = []
    for encoder in (fused, plain):
        vectors = encoder(encoder.tokenize(TEXTS))  # outside of autocast both compute in float32
        (vectors @ torch.arange(vectors.shape[1], dtype=torch.float32)).sum().backward()
        weights = [
            weight.grad for weight in encoder.backbone.parameters() if weight.grad is not None
        ]
        gradients.append(torch.cat([weight.flatten() for weight in weights]))
        encoder.save(tmp_path / encoder.precision)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)
    fingerprints = {
        Encoder.load(tmp_path / name, 16).fingerprint() for name in ("float32", "bfloat16")
    }
    configs = {(tmp_path / name / "config.json").read_bytes() for name in ("float32", "bfloat16")}
    assert len(fingerprints) == len(configs) == 1


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2"])
def test_what_has_no_fused_attention_trains(tmp_path: Path, kind: str) -> None:
    make_tiny_model(tmp_path / "base", kind, WORDS + ASKS, max_position_embeddings=66)
    encoder = Encoder.load(tmp_path / "base", 16, precision="bfloat16", device="cpu")
    before = encoder.fingerprint()
    settings = make_settings(hierarchy_weight=0.0, negatives="bm25", steps=2, evaluate_every=None)
    result = Trainer(encoder, make_data(), settings, seed=0).fit()
    assert result.step == 2
    assert encoder.fingerprint() != before
    assert implementations(encoder) == {"eager"}


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_the_named_gpu_trains(
    monkeypatch: pytest.MonkeyPatch, device: str, chosen: list[str]
) -> None:
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: current.append(str(number)))
    make_accelerator(torch.device(device), "float32")
    assert current == chosen


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_beyond_the_positions_are_refused(tmp_path: Path, name: str) -> None:
    encoder = make_encoder(tmp_path / "base")
    with pytest.raises(
        SettingsError, match=f"{name} is 65, but the encoder has positions for 64 tokens; lower it"
    ):
        Trainer(encoder, make_data(), make_settings(**PLAIN, **{name: 65}), seed=0)
    Trainer(encoder, make_data(), make_settings(**PLAIN, **{name: 64}), seed=0)


def test_positions_before_the_padding_do_not_count(tmp_path: Path) -> None:
    encoder = Encoder.load(
        make_tiny_model(tmp_path / "base", "roberta", WORDS + ASKS), 16, device="cpu"
    )
    with pytest.raises(
        SettingsError, match="query_max_tokens is 64, but the encoder has positions for 63 tokens"
    ):
        Trainer(encoder, make_data(), make_settings(**PLAIN), seed=0)
