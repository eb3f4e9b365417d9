"""Guards what documents become of several layers: per-layer vectors against loops over
transformers' hidden states, the last layer found by its number, T5's un-normalised inner layers,
and projections.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError, SettingsError
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import set_indexed_layers
from tests.tiny_encoder import make_tiny_encoder, make_tokenizer

TWO = LayerSettings(numbers=(1,), pooling="multi_vector")


def make_t5(texts: list[str], projections: tuple[torch.nn.Sequential, ...] = ()) -> Encoder:
    """The shape of GTR: a T5 encoder of three layers, whose inner layers are residual streams."""
    from transformers import T5Config, T5EncoderModel

    tokenizer = make_tokenizer(texts)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=3,
        num_heads=4,
        dropout_rate=0,
    )
    torch.manual_seed(0)
    return Encoder(T5EncoderModel(config), tokenizer, "mean", 24, "float32", projections).eval()


@pytest.fixture
def deep(tmp_path: Path, texts: list[str]) -> Encoder:
    """A BERT of three layers."""
    return Encoder.load(
        make_tiny_encoder(tmp_path / "deep", texts, layers=3), 24, precision="float32", device="cpu"
    )


def loop_pooled(encoder: Encoder, text: str, number: int) -> torch.Tensor:
    """One text alone, so without padding: the mean of its token vectors, or the first of them."""
    features = encoder.tokenize([text])
    with torch.no_grad():
        tokens = encoder.backbone(**features, output_hidden_states=True).hidden_states[number][0]
    return tokens[0] if encoder.pooling == "cls" else tokens.mean(dim=0)


@pytest.mark.parametrize("kind", ["mean", "cls", "t5"])
def test_layers_are_pooled_and_normalised_separately(
    deep: Encoder, texts: list[str], kind: str
) -> None:
    encoder = make_t5(texts) if kind == "t5" else deep
    encoder.pooling = "cls" if kind == "cls" else "mean"
    numbers = (3, 0, 2)
    with torch.no_grad():
        vectors = encoder.layers_forward(encoder.tokenize(texts), numbers)
    for row, text in enumerate(texts):
        for column, number in enumerate(numbers):
            expected = normalize(loop_pooled(encoder, text, number), dim=0)
            torch.testing.assert_close(vectors[row, column], expected, rtol=1e-4, atol=2e-6)

    # 3 is the last, wherever
    np.testing.assert_allclose(vectors[:, 0].numpy(), encoder.encode_queries(texts), atol=2e-6)


def test_projections_receive_layers_with_last_layer_norm(texts: list[str]) -> None:
    torch.manual_seed(1)
    # The projection is not linear, so the norm of its input matters.
    projection = torch.nn.Sequential(torch.nn.Linear(32, 12), torch.nn.Tanh())
    encoder = make_t5(texts, (projection,))

    with torch.no_grad():
        vectors = encoder.layers_forward(encoder.tokenize(texts), (1, 3))

        for row, text in enumerate(texts):
            inner = loop_pooled(encoder, text, 1)
            last = loop_pooled(encoder, text, 3)
            # Equal norms would show nothing.
            assert abs(inner.norm() - last.norm()) > 0.02 * last.norm()
            inner_with_last_norm = inner / inner.norm() * last.norm()
            expected = normalize(projection(inner_with_last_norm), dim=0)
            torch.testing.assert_close(vectors[row, 0], expected, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(vectors[:, 1].numpy(), encoder.encode_queries(texts), atol=2e-6)


def test_layer_rows_do_not_depend_on_batch(deep, texts):
    for numbers in ((2, 1), (1, 2), (3, 2, 1), (2, 3, 1)):
        set_indexed_layers(deep, LayerSettings(numbers=numbers, pooling="multi_vector"))
        assert deep.layers == (1, 2, 3)
        assert deep.vectors_per_passage == 3
    rows = deep.encode_documents(texts)

    assert rows.shape == (3 * len(texts), 32)
    np.testing.assert_allclose(rows[2::3], deep.encode_queries(texts), atol=2e-6)

    alone = np.concatenate([deep.encode_documents([text]) for text in texts])
    np.testing.assert_allclose(rows, alone, atol=2e-6)


def test_a_number_above_the_last_is_refused(deep: Encoder, texts: list[str]) -> None:
    with pytest.raises(SettingsError, match="above the encoder's last, which is 3"):
        set_indexed_layers(deep, LayerSettings(numbers=(2, 4)))
    for number in (4, -1):
        with pytest.raises(FreshetError, match=f"no layer {number}"):
            deep.layers_forward(deep.tokenize(texts), (number,))
    with pytest.raises(SettingsError, match="numbered from 0"):
        LayerSettings(numbers=(-1,))
    with pytest.raises(SettingsError, match="twice"):
        LayerSettings(numbers=(2, 2))


@pytest.mark.parametrize(
    "settings",
    [
        LayerSettings(),
        LayerSettings(numbers=(1,)),
        LayerSettings(numbers=(3,), pooling="multi_vector"),
    ],
)
def test_last_layer_alone_is_an_ordinary_encoder(deep, texts, settings):
    before = deep.fingerprint()
    set_indexed_layers(deep, TWO)

    assert deep.fingerprint() != before

    set_indexed_layers(deep, settings)
    assert deep.layers == ()
    assert deep.fingerprint() == before
