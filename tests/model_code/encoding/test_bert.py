"""Guards the BERT without transformers: equal bits, equal fingerprint, refused architectures, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from model_code.encoding.bert import is_plain_bert, load_plain_bert
from model_code.encoding.encoder import Encoder
from tests.tiny_encoder import make_tiny_encoder

TEXTS = ["open a file", "sort", "read a table of comma separated values and sort its rows", "a b c d e f g"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_encoder(tmp_path_factory.mktemp("bert") / "encoder", TEXTS)


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS, TEXTS * 30])
def test_the_same_bits_as_transformers(folder, texts):
    ours, theirs = (Encoder.load(folder, device="cpu", for_search=plain) for plain in (True, False))
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


def test_the_same_fingerprint(folder):
    assert Encoder.load(folder, for_search=True).fingerprint() == Encoder.load(folder).fingerprint()


@pytest.mark.parametrize("change", [{"model_type": "t5"}, {"hidden_act": "relu"}, {"is_decoder": True}])
def test_any_other_architecture_is_left_to_transformers(folder, tmp_path, change):
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert is_plain_bert(folder)
    assert not is_plain_bert(tmp_path)


def test_searching_does_not_import_transformers(folder):
    code = (
        "import sys; from model_code.encoding.encoder import Encoder; "
        f"Encoder.load({str(folder)!r}, for_search=True).encode(['open']); sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
