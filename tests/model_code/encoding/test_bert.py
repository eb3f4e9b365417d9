"""Tests of the BERT without transformers.

It must give the same bits as transformers. Folders that transformers would read differently must be
left to transformers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model_code.encoding.base_models import load_tokenizer, tokenizer_rules
from model_code.encoding.bert import load_plain_bert
from model_code.encoding.bert_files import (
    SINGLE_TEXT_TEMPLATE,
    TEXT_PAIR_TEMPLATE,
    PlainTokenizer,
)
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings, Precision
from model_code.errors import FreshetError
from model_code.files import read_json
from tests.mapped_files import needs_smaps, resident_kilobytes
from tests.tiny_encoder import make_tiny_encoder

TEXTS = [
    "open a file",
    "sort",
    "read a table of comma separated values and sort its rows",
    "a b c d e f g",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("bert") / "encoder", TEXTS)


@pytest.fixture
def changed_folder(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the encoder's folder that a test may change."""
    return shutil.copytree(folder, tmp_path / "changed")


def update_json(path: Path, changes: dict[str, Any]) -> None:
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


def assert_uses_plain_bert(encoder: Encoder) -> None:
    assert type(encoder.backbone).__name__ == "Bert"


def assert_uses_transformers(encoder: Encoder) -> None:
    assert type(encoder.backbone).__name__ != "Bert"


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS, TEXTS * 30])
def test_vectors_equal_transformers_bit_for_bit(folder: Path, texts: list[str]) -> None:
    plain = Encoder.load(folder, precision="float32", device="cpu", for_search=True)
    reference = Encoder.load(folder, precision="float32", device="cpu", for_search=False)

    assert_uses_plain_bert(plain)
    assert_uses_transformers(reference)
    np.testing.assert_array_equal(plain.encode_queries(texts), reference.encode_queries(texts))


@needs_smaps
def test_released_weights_are_not_resident_and_give_equal_vectors(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "encoder", TEXTS, hidden=256)
    weights_file = folder / "model.safetensors"
    encoder = Encoder.load(folder, device="cpu", for_search=True)
    fingerprint = Encoder.load(folder, device="cpu").fingerprint()
    vectors = encoder.encode_queries(TEXTS)
    kilobytes_when_read = resident_kilobytes(weights_file)

    encoder.release_weights()

    # The kernel maps more pages than the header, which loading reads: up to 60 % of so small a file.
    assert resident_kilobytes(weights_file) < 0.8 * kilobytes_when_read
    np.testing.assert_array_equal(encoder.encode_queries(TEXTS), vectors)
    assert encoder.fingerprint() == fingerprint


def test_weights_converted_to_float32_stay(changed_folder: Path) -> None:
    weights = load_file(changed_folder / "model.safetensors")
    halved = {name: weight.half() for name, weight in weights.items()}
    save_file(halved, changed_folder / "model.safetensors")
    encoder = Encoder.load(changed_folder, device="cpu", for_search=True)
    vectors = encoder.encode_queries(TEXTS)

    encoder.release_weights()

    assert {weight.dtype for weight in encoder.state_dict().values()} == {torch.float32}
    np.testing.assert_array_equal(encoder.encode_queries(TEXTS), vectors)


def test_hidden_states_equal_transformers_with_padding(folder: Path) -> None:
    reference = Encoder.load(folder, device="cpu")
    features = reference.tokenize(TEXTS)
    is_token = features["attention_mask"].bool()

    with torch.no_grad():
        expected = reference.backbone(**features, output_hidden_states=True).hidden_states
        actual = load_plain_bert(folder)(**features).hidden_states

    assert len(actual) == 3
    assert len(expected) == 3
    for actual_layer, expected_layer in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            actual_layer[is_token], expected_layer[is_token], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize(
    "change", [{"model_type": "t5"}, {"hidden_act": "relu"}, {"is_decoder": True}]
)
def test_other_architectures_are_left_to_transformers(
    changed_folder: Path, change: dict[str, Any]
) -> None:
    assert load_plain_bert(changed_folder) is not None

    update_json(changed_folder / "config.json", change)

    assert load_plain_bert(changed_folder) is None


@pytest.mark.parametrize(
    ("rules", "config", "is_same"),
    [
        ({}, {}, True),
        ({}, {"do_lower_case": False}, False),
        ({"post_processor": None}, {}, False),
        ({"decoder": None}, {}, False),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, {}, False),
        (
            {"pre_tokenizer": {"type": "WhitespaceSplit"}},
            {"tokenizer_class": "PreTrainedTokenizerFast"},
            True,
        ),
        ({}, {"tokenizer_class": "RobertaTokenizer"}, False),
    ],
)
def test_other_tokenizer_rules_are_left_to_transformers(
    changed_folder: Path, rules: dict[str, Any], config: dict[str, Any], is_same: bool
) -> None:
    published_rules = {
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": SINGLE_TEXT_TEMPLATE,
            "pair": TEXT_PAIR_TEMPLATE,
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
    }
    tokenizer_config = changed_folder / "tokenizer_config.json"
    update_json(changed_folder / "tokenizer.json", published_rules)
    update_json(changed_folder / "tokenizer.json", rules)
    update_json(tokenizer_config, {"tokenizer_class": "BertTokenizer"})
    update_json(tokenizer_config, config)

    is_plain = load_plain_bert(changed_folder) is not None

    assert is_plain == is_same
    # The oracle is the BERT tokenizer of transformers.
    if read_json(tokenizer_config)["tokenizer_class"] == "BertTokenizer":
        plain_rules = tokenizer_rules(PlainTokenizer(changed_folder))
        reference_rules = tokenizer_rules(load_tokenizer(changed_folder))
        assert (plain_rules == reference_rules) == is_same


def test_saved_position_ids_are_ignored(folder: Path, changed_folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.position_ids"] = torch.arange(64)[None]
    save_file(weights, changed_folder / "model.safetensors")

    encoder = Encoder.load(changed_folder, for_search=True)

    assert load_plain_bert(changed_folder, max_tokens=64) is not None
    assert encoder.fingerprint() == Encoder.load(folder).fingerprint()


def test_unknown_weights_are_left_to_transformers(folder: Path, changed_folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["x"] = torch.ones(1)
    save_file(weights, changed_folder / "model.safetensors")

    assert load_plain_bert(changed_folder) is None


def test_too_large_max_tokens_is_refused(folder: Path) -> None:
    with pytest.raises(FreshetError, match="has 64 positions"):
        Encoder.load(folder, 65, for_search=True)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packaged_base_equals_transformers(precision: Precision) -> None:
    settings = EncoderSettings(max_tokens=32, precision=precision, device="cpu")
    texts = [*TEXTS, "Élan vital -- 東京 numpy.linalg.solve(a, b) " * 9]

    plain = Encoder.from_settings(settings, for_search=True)
    reference = Encoder.from_settings(settings, for_search=False)

    assert_uses_plain_bert(plain)
    assert_uses_transformers(reference)
    np.testing.assert_array_equal(plain.encode_queries(texts), reference.encode_queries(texts))
    assert plain.fingerprint() == reference.fingerprint()


def test_encoding_for_search_avoids_transformers(folder: Path) -> None:
    code = f"""
import sys
from model_code.encoding.encoder import Encoder

Encoder.load({str(folder)!r}, for_search=True).encode_queries(["open"])
sys.exit("transformers" in sys.modules)
"""

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
