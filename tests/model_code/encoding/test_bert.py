"""Guards the BERT without transformers: equal bits, equal fingerprint, what it imports, and what it
leaves to them: other architectures, tokenizers that transformers would read differently, weights of
other names, too long texts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model_code.encoding.base_models import load_tokenizer, tokenizer_rules
from model_code.encoding.bert import PAIR, SINGLE, PlainTokenizer, load_plain_bert
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from tests.tiny_encoder import make_tiny_encoder

TEXTS = [
    "open a file",
    "sort",
    "read a table of comma separated values and sort its rows",
    "a b c d e f g",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_encoder(tmp_path_factory.mktemp("bert") / "encoder", TEXTS)


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS, TEXTS * 30])
def test_the_same_bits_as_transformers(folder, texts):
    ours, theirs = (
        Encoder.load(folder, None, None, "float32", "cpu", plain) for plain in (True, False)
    )
    assert type(ours.backbone).__name__ == "Bert" != type(theirs.backbone).__name__
    np.testing.assert_array_equal(ours.encode(texts), theirs.encode(texts))


def test_the_same_hidden_states_with_padding(folder):
    theirs = Encoder.load(folder, device="cpu")
    features = theirs.tokenize(TEXTS)
    with torch.no_grad():
        expected = theirs.backbone(**features, output_hidden_states=True).hidden_states
        found = load_plain_bert(folder)(**features).hidden_states
    kept = features["attention_mask"].bool()
    assert len(found) == len(expected) == 3
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[kept], other[kept], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "change", [{"model_type": "t5"}, {"hidden_act": "relu"}, {"is_decoder": True}]
)
def test_any_other_architecture_is_left_to_transformers(folder, tmp_path, change):
    shutil.copytree(folder, tmp_path / "other")
    assert load_plain_bert(tmp_path / "other")
    edit(tmp_path / "other" / "config.json", change)
    assert not load_plain_bert(tmp_path / "other")


def edit(path, change):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("rules", "config", "alike"),
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
def test_a_tokenizer_is_read_plainly_if_transformers_reads_the_same_rules(
    folder, tmp_path, rules, config, alike
):
    other = shutil.copytree(folder, tmp_path / "other")
    tokens = {
        name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((2, "[CLS]"), (3, "[SEP]"))
    }
    template = {
        "type": "TemplateProcessing",
        "single": SINGLE,
        "pair": PAIR,
        "special_tokens": tokens,
    }
    published = {
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "post_processor": template,
    }
    edit(other / "tokenizer.json", published | rules)
    edit(other / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"} | config)
    assert (load_plain_bert(other) is not None) == alike
    if "Bert" in json.loads((other / "tokenizer_config.json").read_text())["tokenizer_class"]:
        assert (
            tokenizer_rules(PlainTokenizer(other)) == tokenizer_rules(load_tokenizer(other))
        ) == alike


def test_weights_of_other_names_and_too_long_texts_are_left_to_transformers(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    for name, change in (
        ("old", {"embeddings.position_ids": torch.arange(64)[None]}),
        ("head", {"x": torch.ones(1)}),
    ):
        save_file(weights | change, shutil.copytree(folder, tmp_path / name) / "model.safetensors")
    assert load_plain_bert(tmp_path / "old", max_tokens=64)
    assert (
        Encoder.load(tmp_path / "old", for_search=True).fingerprint()
        == Encoder.load(folder).fingerprint()
    )
    assert not load_plain_bert(tmp_path / "head")
    with pytest.raises(FreshetError, match="has 64 positions"):
        Encoder.load(folder, 65, for_search=True)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_packaged_base_gives_the_same_bits(precision):
    settings = EncoderSettings(max_tokens=32, precision=precision, device="cpu")
    ours, theirs = (Encoder.from_settings(settings, for_search=plain) for plain in (True, False))
    assert type(ours.backbone).__name__ == "Bert" != type(theirs.backbone).__name__
    texts = [*TEXTS, "Élan vital -- 東京 numpy.linalg.solve(a, b) " * 9]
    np.testing.assert_array_equal(ours.encode(texts), theirs.encode(texts))
    assert ours.fingerprint() == theirs.fingerprint()


def test_searching_does_not_import_transformers(folder):
    code = (
        "import sys; from model_code.encoding.encoder import Encoder; "
        f"Encoder.load({str(folder)!r}, for_search=True).encode(['open']); sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
