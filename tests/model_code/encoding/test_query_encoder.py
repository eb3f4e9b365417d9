"""Tests of the encoder of queries in NumPy. It gives the vectors of an `Encoder` in float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_code.encoding import query_encoder
from model_code.encoding.base_models import Prompts
from model_code.encoding.encoder import Encoder
from model_code.encoding.query_encoder import (
    QueryEncoder,
    SearchEncoder,
    has_gpu_driver,
    load_search_encoder,
)
from model_code.encoding.shared_encoders import EncoderReference
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = [
    "open a file",
    "sort",
    "read a table of comma separated values and sort its rows",
    "unbelievable ! file",
    "",
]
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("queries") / "encoder", TEXTS)


def load_reference(folder: Path) -> Encoder:
    return Encoder.load(folder, precision="float32", device="cpu")


def load_queries(folder: Path | str) -> QueryEncoder:
    encoder = load_search_encoder(folder, numpy=True, device="cpu")
    assert isinstance(encoder, QueryEncoder)
    return encoder


def make_changed(folder: Path, target: Path, pooling: str = "mean", prompt: str = "") -> Path:
    """Save the tiny encoder with another pooling and a prompt of queries."""
    encoder = load_reference(folder)
    encoder.pooling = pooling  # type: ignore[assignment]
    encoder.prompts = Prompts(prompt)
    encoder.save(target)
    return target


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("prompt", ["", "find: "])
def test_vectors_equal_those_of_the_encoder(
    folder: Path, tmp_path: Path, pooling: str, prompt: str
) -> None:
    changed = make_changed(folder, tmp_path / "changed", pooling, prompt)

    vectors = load_queries(changed).encode_queries(TEXTS)

    np.testing.assert_allclose(
        vectors, load_reference(changed).encode_queries(TEXTS), atol=TOLERANCE
    )


@pytest.mark.parametrize("prompt", ["", "find: "])
def test_signs_equal_those_of_the_encoder(folder: Path, tmp_path: Path, prompt: str) -> None:
    changed = make_changed(folder, tmp_path / "changed", prompt=prompt)

    _, signs = load_queries(changed).encode_queries_with_signs(TEXTS)

    _, expected = load_reference(changed).encode_queries_with_signs(TEXTS)
    np.testing.assert_array_equal(signs.starts, expected.starts)
    np.testing.assert_array_equal(signs.bits, expected.bits)


def test_vectors_with_tokens_equal_vectors_alone(folder: Path) -> None:
    encoder = load_queries(folder)

    vectors, _ = encoder.encode_queries_with_signs(TEXTS)

    np.testing.assert_array_equal(vectors, encoder.encode_queries(TEXTS))


def test_many_texts_are_in_their_order(folder: Path) -> None:
    texts = [" ".join(TEXTS[: 1 + number % 4]) for number in range(100)]
    encoder = load_queries(folder)

    vectors = encoder.encode_queries(texts)

    for number in range(0, 100, 9):
        np.testing.assert_allclose(
            vectors[number], encoder.encode_queries([texts[number]])[0], atol=1e-6
        )


def test_no_texts_give_no_vectors(folder: Path) -> None:
    assert load_queries(folder).encode_queries([]).shape == (0, 32)


def test_fingerprint_equals_that_of_the_encoder(folder: Path, tmp_path: Path) -> None:
    changed = make_changed(folder, tmp_path / "changed", "cls", "find: ")

    assert load_queries(changed).fingerprint() == load_reference(changed).fingerprint()


def test_packaged_encoder_agrees_with_pytorch(tmp_path: Path) -> None:
    reference = EncoderReference(MINILM, "mean", 128, Prompts("find: "))
    reference.save(tmp_path / "reference")

    encoder = load_queries(tmp_path / "reference")

    expected = Encoder.load(tmp_path / "reference", precision="float32", device="cpu")
    assert encoder.fingerprint() == expected.fingerprint()
    np.testing.assert_allclose(
        encoder.encode_queries(TEXTS), expected.encode_queries(TEXTS), atol=TOLERANCE
    )


def test_packaged_encoders_are_shared(tmp_path: Path) -> None:
    for name in ("first", "second"):
        EncoderReference(MINILM, "mean", 128, Prompts()).save(tmp_path / name)

    assert load_queries(tmp_path / "first") is load_queries(tmp_path / "second")


def test_documents_equal_those_of_the_encoder_for_search(folder: Path) -> None:
    for_search = Encoder.load(folder, device="cpu", for_search=True)

    documents = load_queries(folder).encode_documents(TEXTS)

    np.testing.assert_array_equal(documents, for_search.encode_documents(TEXTS))


def test_document_token_ids_equal_those_of_the_encoder(folder: Path) -> None:
    token_ids = load_queries(folder).document_token_ids(TEXTS)

    assert token_ids == load_reference(folder).document_token_ids(TEXTS)


def test_long_queries_are_cut(folder: Path) -> None:
    long_query = " ".join(["sort"] * 200)

    vectors = load_queries(folder).encode_queries([long_query])

    expected = load_reference(folder).encode_queries([long_query])
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)


def assert_uses_pytorch(encoder: SearchEncoder) -> None:
    assert isinstance(encoder, Encoder)


def test_pytorch_encodes_by_default(folder: Path) -> None:
    assert_uses_pytorch(load_search_encoder(folder))


def test_pytorch_encodes_where_a_gpu_may_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_encoder, "has_gpu_driver", lambda: True)

    assert_uses_pytorch(load_search_encoder(folder, numpy=True))


def test_pytorch_encodes_for_other_architectures(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "mpnet", "mpnet", TEXTS)

    assert_uses_pytorch(load_search_encoder(folder, numpy=True, max_tokens=32, device="cpu"))


def test_driver_is_found_by_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(query_encoder, "GPU_DEVICES", (str(device),))
    monkeypatch.setattr(sys, "platform", "linux")
    before = has_gpu_driver()

    device.touch()

    assert (before, has_gpu_driver()) == (False, True)


def test_queries_do_not_import_pytorch(folder: Path) -> None:
    program = (
        "import sys; from model_code.encoding.query_encoder import load_search_encoder; "
        f"encoder = load_search_encoder({str(folder)!r}, numpy=True, device='cpu'); "
        "encoder.encode_queries_with_signs(['sort a file']); encoder.fingerprint(); "
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
