"""Guards encoders with a query encoder of their own: each text goes to its side, both sides are saved and load
elsewhere, one encoder for both sides is what it was; and a fingerprint changes with all that changes vectors of either
side, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder, encode_passages
from model_code.encoding.layers import represent_documents
from model_code.encoding.settings import EncoderSettings, LayerSettings
from model_code.encoding.sides import fingerprint, require_sides
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json, write_json

OPTIONS = {"precision": "float32", "device": "cpu"}


def moved(module: torch.nn.Module, seed: int) -> None:
    """Add noise to every weight."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))


@pytest.fixture
def two(tiny_folder: Path) -> Encoder:
    """An encoder whose two sides are apart."""
    encoder = Encoder.load(tiny_folder, **OPTIONS)
    encoder.separate()
    moved(encoder.query_encoder, 0)
    return encoder


def test_a_copy_gives_equal_vectors_and_shares_no_weight(tiny_folder: Path, texts: list[str]) -> None:
    encoder = Encoder.load(tiny_folder, **OPTIONS)
    before = encoder.encode(texts)
    encoder.separate()
    np.testing.assert_array_equal(encoder.encode(texts), before)
    np.testing.assert_array_equal(encoder.encode_documents(texts), before)
    moved(encoder.query_encoder, 0)
    np.testing.assert_array_equal(encoder.encode_documents(texts), before)
    assert np.abs(encoder.encode(texts) - before).max() > 0.1
    own, other = ({weight.data_ptr() for weight in side.backbone.parameters()} for side in encoder.sides)
    assert not own & other


def test_every_layer_but_the_querys_is_the_documents(two: Encoder, texts: list[str]) -> None:
    queries = two.query_encoder.encode(texts)
    represent_documents(two, LayerSettings(numbers=(1,), pooling="multi_vector"))
    np.testing.assert_array_equal(two.encode(texts), queries)
    states = two.layers_forward(two.tokenize(texts), (1, 2)).detach().numpy()
    np.testing.assert_allclose(two.encode_documents(texts), states.reshape(-1, 32), atol=2e-6)
    np.testing.assert_allclose(encode_passages(two, texts), states[:, 1], atol=2e-6)
    assert np.abs(encode_passages(two, texts) - queries).max() > 0.1


def test_both_sides_survive_saving_and_load_with_sentence_transformers(
    two: Encoder, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    two.save(tmp_path / "saved")
    for for_search in (False, True):
        loaded = Encoder.load(tmp_path / "saved", **OPTIONS, for_search=for_search)
        assert loaded.fingerprints() == two.fingerprints()
        np.testing.assert_array_equal(loaded.encode(texts), two.encode(texts))
        np.testing.assert_array_equal(loaded.encode_documents(texts), two.encode_documents(texts))
    peers = [
        SentenceTransformer(str(path), device="cpu") for path in (tmp_path / "saved", tmp_path / "saved/query_encoder")
    ]
    np.testing.assert_allclose(peers[0].encode(texts), two.encode_documents(texts), atol=2e-6)
    np.testing.assert_allclose(peers[1].encode(texts), two.encode(texts), atol=2e-6)


def test_a_fingerprint_is_of_both_sides_and_of_which_is_which(tiny_folder: Path, two: Encoder) -> None:
    one = Encoder.load(tiny_folder, **OPTIONS)
    assert one.fingerprint() == fingerprint(one.state_dict(), one.tokenizer, "mean", one.max_tokens)  # as ever
    assert one.side_facts() == {}
    assert two.own_fingerprint() == one.fingerprint()
    swapped = Encoder.load(tiny_folder, **OPTIONS)
    swapped.separate()
    assert len({one.fingerprint(), two.fingerprint(), swapped.fingerprint()}) == 3
    moved(swapped, 0)
    sides = two.fingerprints()
    assert swapped.fingerprints() != sides
    with torch.no_grad():
        next(two.query_encoder.parameters()).add_(1e-6)
    assert two.fingerprints() == {"documents": sides["documents"], "queries": two.query_encoder.fingerprint()}
    assert two.fingerprint() != one.fingerprint()


@pytest.mark.parametrize("side", ["documents", "queries"])
def test_another_side_is_refused_by_name(two: Encoder, tiny_folder: Path, side: str) -> None:
    manifest = two.side_facts()
    require_sides(two.fingerprints(), manifest, Path("index"))
    moved(two if side == "documents" else two.query_encoder, 5)
    with pytest.raises(
        FingerprintMismatch, match=f"separate encoders, and that of {side if side == 'queries' else 'doc'}"
    ):
        require_sides(two.fingerprints(), manifest, Path("index"))
    with pytest.raises(FingerprintMismatch, match="that of queries"):  # the query side is lost
        require_sides(Encoder.load(tiny_folder, **OPTIONS).fingerprints(), manifest, Path("index"))


def test_two_sides_are_no_base(two: Encoder, tmp_path: Path) -> None:
    two.save(tmp_path / "base")
    with pytest.raises(FreshetError, match="encoder.base must be one encoder for both sides"):
        Encoder.from_settings(EncoderSettings(base=str(tmp_path / "base"), device="cpu"))


def load(folder: Path, max_tokens: int = 32, pooling: str = "mean") -> Encoder:
    """The tiny encoder, freshly loaded."""
    return Encoder.load(folder, max_tokens, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]


def test_it_changes_with_what_decides_the_vectors(tiny_folder: Path, tmp_path: Path) -> None:
    nudged = load(tiny_folder)
    with torch.no_grad():
        nudged.backbone.embeddings.word_embeddings.weight[7, 3] += 1e-6
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "cased"))
    tokenizer = read_json(folder / "tokenizer.json")
    tokenizer["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", tokenizer)
    encoders = [load(tiny_folder), nudged, load(folder), load(tiny_folder, 31), load(tiny_folder, pooling="cls")]
    assert len({encoder.fingerprint() for encoder in encoders}) == len(encoders)


def test_it_does_not_change_with_use_precision_or_folder(tiny_folder: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = load(tiny_folder)
    before = encoder.fingerprint()
    encoder.tokenizer(texts, padding=True, truncation=True, max_length=5)
    encoder.encode(texts)
    encoder.save(tmp_path / "elsewhere")
    assert encoder.fingerprint() == before == load(tmp_path / "elsewhere").fingerprint()
    assert Encoder.load(tiny_folder, 32, precision="bfloat16").fingerprint() == before
