"""Tests of what learns, and how fast.

Frozen layers store nothing for the backward pass. Parameter groups have their own rates. The
attention implementation and the GPU are chosen. Texts longer than the encoder has positions for are
refused by the name of their setting.
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
CONTRASTIVE_ONLY = {"hierarchy_weight": 0.0, "negatives": "bm25"}


def trainable_names(backbone) -> set[str]:
    """Return the names of the weights that learn."""
    return {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}


def trainable_layers(backbone) -> set[str]:
    """Return the layer numbers of the weights that learn, all of which must be in a layer."""
    return {name.split(".")[2] for name in trainable_names(backbone)}


def test_frozen_layers_and_embeddings_do_not_learn(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone

    freeze_layers(backbone, 1)

    assert trainable_layers(backbone) == {"1"}


def test_zero_frozen_layers_freeze_the_embeddings(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone

    freeze_layers(backbone, 0)

    assert {name.split(".layer.")[0] for name in trainable_names(backbone)} == {"encoder"}


def test_embeddings_learn_if_nothing_is_frozen(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone

    freeze_layers(backbone, None)

    names = trainable_names(backbone)
    assert any("embeddings" in name for name in names)
    assert not any("pooler" in name for name in names)


def test_freezing_every_layer_is_refused(tmp_path: Path):
    backbone = make_encoder(tmp_path / "tiny").backbone

    with pytest.raises(
        SettingsError, match="frozen_layers is 2, but the encoder has only 2 layers"
    ):
        freeze_layers(backbone, 2)


def test_frozen_layers_store_nothing_for_the_backward_pass(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    freeze_layers(encoder.backbone, 1)
    hidden_states = []

    def record_output(module, inputs, output) -> None:
        if isinstance(output, tuple):
            output = output[0]
        hidden_states.append(output)

    for layer in transformer_layers(encoder.backbone):
        layer.register_forward_hook(record_output)
    encoder(encoder.tokenize(["word1 word2"]))

    lower, upper = hidden_states
    assert not lower.requires_grad
    assert upper.requires_grad


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2", "modernbert", "bert"])
def test_frozen_layers_keep_their_output(tmp_path: Path, kind: str):
    """Relative positions are registered after the layers, but every frozen layer reads them."""
    words = [f"word{number}" for number in range(20)]
    config = {"max_position_embeddings": 66}
    if kind == "deberta-v2":
        config["relative_attention"] = True
    make_tiny_model(tmp_path / kind, kind, words, **config)
    encoder = Encoder.load(tmp_path / kind, 16, precision="float32", device="cpu")
    features = encoder.tokenize(["word1 word2 word3"])
    inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
    backbone = encoder.backbone
    freeze_layers(backbone, 1)

    before = backbone(**inputs, output_hidden_states=True).hidden_states
    before[-1].square().sum().backward()
    trainable = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    torch.optim.SGD(trainable, lr=0.1).step()
    after = backbone(**inputs, output_hidden_states=True).hidden_states

    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[2], after[2])


def test_unused_parameters_in_frozen_layers_are_frozen(tmp_path: Path):
    """Longformer's global attention is used only where a text asks for it."""
    config = {"attention_window": 4, "max_position_embeddings": 66}
    make_tiny_model(tmp_path / "base", "longformer", ["word1"], **config)
    backbone = AutoModel.from_pretrained(tmp_path / "base")

    freeze_layers(backbone, 1)

    assert trainable_layers(backbone) == {"1"}


def test_groups_have_their_own_rate_and_decay(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    settings = make_settings(centroid_learning_rate=0.5)
    tree = make_tree(np.random.default_rng(0).standard_normal((24, 32)))
    freeze_layers(encoder.backbone, 1)
    objective = Objective(encoder, settings, tree)

    groups = make_optimizer(objective, settings).param_groups

    matrices, vectors, centroids = groups
    assert {parameter.ndim for parameter in matrices["params"]} == {2}
    assert {parameter.ndim for parameter in vectors["params"]} == {1}
    assert [parameter.shape[0] for parameter in centroids["params"]] == [2, 6]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0, 0.0]
    assert [group["lr"] for group in groups] == [1e-3, 1e-3, 0.5]
    encoder_weights = len(matrices["params"]) + len(vectors["params"])
    assert encoder_weights == len(trainable_names(encoder.backbone))


def test_rate_zero_freezes_the_centroids(tmp_path: Path):
    encoder = make_encoder(tmp_path / "tiny")
    settings = make_settings(centroid_learning_rate=0)
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
    groups = [{"params": [torch.zeros(1)], "lr": rate, "peak": rate} for rate in (1.0, 4.0)]
    optimizer = torch.optim.AdamW(groups)

    set_learning_rate(optimizer, 0.5)
    set_learning_rate(optimizer, 0.25)

    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 1.0]


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.1), (10, 0.0), (10, 0.3), (7, 0.99)])
def test_learning_rate_rises_and_falls(steps: int, warmup: float):
    factors = [learning_rate_factor(step, steps, warmup) for step in range(steps)]

    after_peak = int(np.argmax(factors)) + 1
    rising = factors[:after_peak]
    falling = factors[after_peak:]
    assert max(factors) == 1.0
    assert min(factors) > 0
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)


def load_encoder(folder: Path, precision: str) -> Encoder:
    """Make a tiny encoder that knows the words of TEXTS, and load it."""
    make_tiny_encoder(folder, TEXTS)
    return Encoder.load(folder, 16, precision=precision, device="cpu")


def attention_of(encoder: Encoder) -> str:
    """Return the name of the attention implementation that the encoder uses."""
    return encoder.backbone.config._attn_implementation


@pytest.mark.parametrize(
    ("precision", "tokens", "expected"),
    [
        ("bfloat16", MAX_EAGER_ATTENTION_TOKENS, "eager"),
        ("bfloat16", MAX_EAGER_ATTENTION_TOKENS + 1, "sdpa"),
        ("float32", MAX_EAGER_ATTENTION_TOKENS, "sdpa"),
    ],
)
def test_short_bfloat16_texts_use_eager_attention(
    tmp_path: Path, precision: str, tokens: int, expected: str
) -> None:
    encoder = load_encoder(tmp_path / "tiny", precision)

    select_attention(encoder, tokens)

    assert attention_of(encoder) == expected


@pytest.fixture
def fused_and_eager(tmp_path: Path) -> tuple[Encoder, Encoder]:
    """Two encoders of equal weights; the second uses eager attention."""
    fused = load_encoder(tmp_path / "tiny", "float32")
    eager = load_encoder(tmp_path / "tiny", "float32")
    eager.precision = "bfloat16"
    select_attention(eager, 16)
    assert attention_of(eager) == "eager"
    return fused, eager


def gradients_of(encoder: Encoder) -> torch.Tensor:
    """Return the gradients of all weights; outside of autocast they are computed in float32."""
    vectors = encoder(encoder.tokenize(TEXTS))
    directions = torch.arange(vectors.shape[1], dtype=torch.float32)
    (vectors @ directions).sum().backward()
    gradients = []
    for weight in encoder.backbone.parameters():
        if weight.grad is not None:
            gradients.append(weight.grad.flatten())
    return torch.cat(gradients)


def test_eager_attention_has_the_same_gradients(fused_and_eager: tuple[Encoder, Encoder]) -> None:
    fused, eager = fused_and_eager

    torch.testing.assert_close(gradients_of(eager), gradients_of(fused), rtol=1e-3, atol=1e-5)


def test_eager_attention_is_not_saved(
    tmp_path: Path, fused_and_eager: tuple[Encoder, Encoder]
) -> None:
    fused, eager = fused_and_eager

    fused.save(tmp_path / "fused")
    eager.save(tmp_path / "eager")

    fused_config = (tmp_path / "fused" / "config.json").read_bytes()
    eager_config = (tmp_path / "eager" / "config.json").read_bytes()
    fused_fingerprint = Encoder.load(tmp_path / "fused", 16).fingerprint()
    eager_fingerprint = Encoder.load(tmp_path / "eager", 16).fingerprint()
    assert eager_config == fused_config
    assert eager_fingerprint == fused_fingerprint


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2"])
def test_model_without_fused_attention_trains(tmp_path: Path, kind: str) -> None:
    make_tiny_model(tmp_path / "base", kind, WORDS + ASKS, max_position_embeddings=66)
    encoder = Encoder.load(tmp_path / "base", 16, precision="bfloat16", device="cpu")
    fingerprint_before = encoder.fingerprint()
    settings = make_settings(**CONTRASTIVE_ONLY, steps=2, evaluate_every=None)

    result = Trainer(encoder, make_data(), settings, seed=0).fit()

    assert result.step == 2
    assert encoder.fingerprint() != fingerprint_before
    assert attention_of(encoder) == "eager"


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_named_gpu_trains(monkeypatch: pytest.MonkeyPatch, device: str, chosen: list[str]) -> None:
    devices_set: list[str] = []

    def record_device(device: object) -> None:
        devices_set.append(str(device))

    monkeypatch.setattr(torch.cuda, "set_device", record_device)
    make_accelerator(torch.device(device), "float32")

    assert devices_set == chosen


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_beyond_the_positions_are_refused(tmp_path: Path, name: str) -> None:
    encoder = make_encoder(tmp_path / "base")
    settings = make_settings(**CONTRASTIVE_ONLY, **{name: 65})

    with pytest.raises(
        SettingsError, match=f"{name} is 65, but the encoder has positions for 64 tokens; lower it"
    ):
        Trainer(encoder, make_data(), settings, seed=0)


@pytest.mark.parametrize("name", ["query_max_tokens", "document_max_tokens"])
def test_texts_of_every_position_are_accepted(tmp_path: Path, name: str) -> None:
    encoder = make_encoder(tmp_path / "base")
    settings = make_settings(**CONTRASTIVE_ONLY, **{name: 64})

    trainer = Trainer(encoder, make_data(), settings, seed=0)

    assert getattr(trainer.settings, name) == 64


def test_positions_before_the_padding_do_not_count(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "base", "roberta", WORDS + ASKS)
    encoder = Encoder.load(model, 16, device="cpu")

    with pytest.raises(
        SettingsError, match="query_max_tokens is 64, but the encoder has positions for 63 tokens"
    ):
        Trainer(encoder, make_data(), make_settings(**CONTRASTIVE_ONLY), seed=0)
