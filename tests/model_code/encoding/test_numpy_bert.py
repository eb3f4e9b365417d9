"""Tests of the BERT in NumPy: it agrees with PyTorch in float32."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model_code.encoding.encoder import Encoder
from model_code.encoding.numpy_bert import NumpyBert, erf, gelu, load_numpy_bert
from tests.mapped_files import needs_smaps, resident_kilobytes
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model

TEXTS = [
    "open a file",
    "sort",
    "read a table of comma separated values and sort its rows",
    "a b c d e f g",
]
MAX_TOKENS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("numpy") / "encoder", TEXTS, layers=3)


@pytest.fixture
def changed_folder(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the encoder's folder that a test may change."""
    return shutil.copytree(folder, tmp_path / "changed")


def load_model(folder: Path) -> NumpyBert:
    model = load_numpy_bert(folder, MAX_TOKENS)
    assert model is not None
    return model


def test_states_equal_those_of_pytorch(folder: Path) -> None:
    encoder = Encoder.load(folder, precision="float32", device="cpu")
    token_ids = encoder.token_ids(TEXTS)

    states = load_model(folder).last_states(token_ids)

    for ids, text_states in zip(token_ids, states, strict=True):
        with torch.no_grad():
            expected = encoder.backbone(torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(text_states, expected.numpy(), atol=2e-6)


def test_states_of_a_text_do_not_depend_on_other_texts(folder: Path) -> None:
    token_ids = Encoder.load(folder, device="cpu").token_ids(TEXTS)
    model = load_model(folder)

    together = model.last_states(token_ids)

    for ids, states in zip(token_ids, together, strict=True):
        (alone,) = model.last_states([ids])
        np.testing.assert_allclose(states, alone, atol=1e-6)


@pytest.mark.parametrize("values", [np.linspace(-6, 6, 100_001), np.array([-1e30, 0, 1e30])])
def test_error_function_is_exact_in_float32(values: np.ndarray) -> None:
    inputs = values.astype(np.float32)
    expected = [math.erf(value) for value in inputs.tolist()]

    np.testing.assert_allclose(erf(inputs), expected, rtol=0, atol=5e-7)


def test_gelu_equals_that_of_pytorch() -> None:
    values = np.linspace(-10, 10, 10_001).astype(np.float32)

    expected = torch.nn.functional.gelu(torch.from_numpy(values)).numpy()

    np.testing.assert_allclose(gelu(values), expected, atol=2e-6)


def test_weights_in_half_precision_are_left_to_pytorch(changed_folder: Path) -> None:
    weights_file = changed_folder / "model.safetensors"
    halved = {name: weight.bfloat16() for name, weight in load_file(weights_file).items()}
    save_file(halved, weights_file)

    assert load_numpy_bert(changed_folder, MAX_TOKENS) is None


def test_further_weights_are_left_to_pytorch(changed_folder: Path) -> None:
    weights_file = changed_folder / "model.safetensors"
    weights = load_file(weights_file)
    save_file({**weights, "adapter.weight": torch.zeros(2)}, weights_file)

    assert load_numpy_bert(changed_folder, MAX_TOKENS) is None


def test_stored_position_ids_are_ignored(folder: Path, changed_folder: Path) -> None:
    weights_file = changed_folder / "model.safetensors"
    weights = load_file(weights_file)
    save_file({**weights, "embeddings.position_ids": torch.arange(MAX_TOKENS)}, weights_file)

    (states,) = load_model(changed_folder).last_states([[2, 5, 3]])

    np.testing.assert_array_equal(states, load_model(folder).last_states([[2, 5, 3]])[0])


def test_other_activations_are_left_to_pytorch(changed_folder: Path) -> None:
    path = changed_folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "relu"}))

    assert load_numpy_bert(changed_folder, MAX_TOKENS) is None


def test_other_architectures_are_left_to_pytorch(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "mpnet", "mpnet", TEXTS)

    assert load_numpy_bert(folder, MAX_TOKENS) is None


def test_too_many_tokens_are_left_to_pytorch(folder: Path) -> None:
    assert load_numpy_bert(folder, MAX_TOKENS + 1) is None


@needs_smaps
def test_few_pages_of_the_file_stay_resident(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "encoder", TEXTS, layers=4, hidden=256)
    weights_file = folder / "model.safetensors"

    model = load_model(folder)
    model.last_states([[2, 5, 3]])

    # The kernel maps more pages than those that are read.
    assert resident_kilobytes(weights_file) < 0.5 * weights_file.stat().st_size / 1024


def test_pytorch_is_not_imported(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; "
        "from model_code.encoding.numpy_bert import load_numpy_bert; "
        f"load_numpy_bert(Path({str(folder)!r}), 64).last_states([[2, 5, 3]]); "
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
