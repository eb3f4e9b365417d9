"""Guards that an encoder whose documents come from several layers survives saving, and that sentence-transformers makes
the same vectors of its folder: a mix by `encode_document`, queries (and several vectors' last one) by `encode`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.document_side import represent_documents
from model_code.encoding.encoder import Encoder
from model_code.encoding.layer_settings import LayerSettings
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json
from tests.model_code.encoding.test_layers import make_t5
from tests.tiny_encoder import make_tiny_encoder

sentence_transformers = pytest.importorskip("sentence_transformers")


def make_encoder(kind: str, pooling: str, folder: Path, texts: list[str]) -> Encoder:
    """Layers 1 and 3 of three, with weights as if they had been trained."""
    if kind == "t5":
        torch.manual_seed(1)
        encoder = make_t5(texts, (torch.nn.Sequential(torch.nn.Linear(32, 12), torch.nn.Tanh()),))
    else:
        make_tiny_encoder(folder, texts, layers=3)
        encoder = Encoder.load(folder, 24, "cls" if kind == "cls" else None, "float32", "cpu")
    represent_documents(encoder, LayerSettings(numbers=(1,), pooling=pooling), texts)  # type: ignore[arg-type]
    if pooling == "mix":
        encoder.layers.logits.data = torch.tensor([0.007, -0.002])
    return encoder


@pytest.mark.parametrize("kind", ["mean", "cls", "t5"])
@pytest.mark.parametrize("pooling", ["average", "mix", "multi_vector"])
def test_saved_and_loaded_it_is_the_same(kind: str, pooling: str, texts: list[str], tmp_path: Path) -> None:
    encoder = make_encoder(kind, pooling, tmp_path / "base", texts)
    encoder.save(tmp_path / "a")
    loaded = Encoder.load(tmp_path / "a", 24, precision="float32", device="cpu")
    assert loaded.fingerprint() == encoder.fingerprint()
    np.testing.assert_array_equal(loaded.encode_documents(texts), encoder.encode_documents(texts))
    loaded.save(tmp_path / "b")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")
    assert not loaded.backbone.config.output_hidden_states
    searching = Encoder.load(tmp_path / "a", 24, precision="float32", device="cpu", for_search=True)
    assert searching.fingerprint() == encoder.fingerprint()
    np.testing.assert_allclose(searching.encode_documents(texts), encoder.encode_documents(texts), atol=2e-6)


@pytest.mark.parametrize("kind", ["mean", "cls", "t5"])
@pytest.mark.parametrize("pooling", ["average", "mix"])
def test_sentence_transformers_gives_both_sides(kind: str, pooling: str, texts: list[str], tmp_path: Path) -> None:
    encoder = make_encoder(kind, pooling, tmp_path / "base", texts)
    encoder.save(tmp_path / "ours")
    peer = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    queries, documents = encoder.encode(texts), encoder.encode_documents(texts)
    assert np.abs(queries - documents).max() > 1e-3
    np.testing.assert_allclose(peer.encode_query(texts), queries, atol=3e-6)
    np.testing.assert_allclose(peer.encode(texts), queries, atol=3e-6)
    np.testing.assert_allclose(peer.encode_document(texts), documents, atol=3e-6)
    assert peer.max_seq_length == 24


def test_several_vectors_load_there_as_the_last_layer(texts: list[str], tmp_path: Path) -> None:
    encoder = make_encoder("mean", "multi_vector", tmp_path / "base", texts)
    encoder.save(tmp_path / "ours")
    peer = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(peer.encode_document(texts), encoder.encode_documents(texts)[1::2], atol=2e-6)


def test_anyone_elses_router_is_refused(texts: list[str], tmp_path: Path) -> None:
    make_encoder("mean", "mix", tmp_path / "base", texts).save(tmp_path / "ours")
    (tmp_path / "ours" / "layers.json").unlink()
    with pytest.raises(FreshetError, match="'Router' is not supported"):
        Encoder.load(tmp_path / "ours")


def test_the_weights_there_cover_every_layer_from_the_first(texts: list[str], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    encoder = make_encoder("mean", "mix", tmp_path / "base", texts)
    encoder.save(tmp_path / "ours")
    weights = load_file(tmp_path / "ours" / "layers" / "model.safetensors")["layer_weights"]
    assert torch.equal(weights[[0, 2]], encoder.layers.weights().detach())
    assert weights[1] == 0  # layer 2
    config = read_json(tmp_path / "ours" / "layers" / "config.json")
    assert (config["layer_start"], config["num_hidden_layers"]) == (1, 3)


def test_other_layers_are_another_encoder(texts: list[str], tmp_path: Path) -> None:
    encoder = make_encoder("mean", "multi_vector", tmp_path / "base", texts)
    encoder.save(tmp_path / "ours")
    write_json(tmp_path / "ours" / "layers.json", {"numbers": [2, 3], "pooling": "multi_vector"})
    assert Encoder.load(tmp_path / "ours", 24).fingerprint() != encoder.fingerprint()
