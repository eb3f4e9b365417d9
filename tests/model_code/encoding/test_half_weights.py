"""Guards products by half-precision weights: against float64, where they apply, and that nothing else changes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from model_code.encoding import encoder as encoders
from model_code.encoding.encoder import Encoder
from model_code.encoding.half_weights import LARGEST, HalfLinear, halve
from model_code.encoding.hardware import has_half_weights, uses_half_weights
from tests.tiny_encoder import make_tiny_encoder

CPU = torch.device("cpu")
TEXTS = ["open a file", "sort", "read a table of comma separated values and sort its rows", "a b c d e f g"]
needed = pytest.mark.skipif(not has_half_weights(CPU), reason="this CPU, or this torch, has no such products")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_encoder(tmp_path_factory.mktemp("half") / "encoder", TEXTS)


@pytest.fixture
def no_bfloat16(monkeypatch):
    monkeypatch.setattr("model_code.encoding.hardware.has_bfloat16", lambda device: False)


def halved(*sizes: int, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(*sizes, bias=bias)
    halve(linear)
    assert type(linear) is HalfLinear
    return linear


@needed
@pytest.mark.parametrize("rows", [(1,), (11,), (2, 5), (3, 1, 40)])
@pytest.mark.parametrize("bias", [True, False])
def test_only_the_weights_are_rounded(rows, bias):
    torch.manual_seed(0)
    linear, inputs = halved(33, 20, bias=bias), torch.randn(*rows, 33)
    weight, offset = linear.weight.detach().half().double(), linear.bias.detach().double() if bias else 0.0
    expected = np.empty((*rows, 20))
    for row in np.ndindex(*rows):
        for out in range(20):
            expected[row][out] = float((inputs[row].double() * weight[out]).sum()) + (offset[out] if bias else 0.0)
    with torch.no_grad():
        np.testing.assert_allclose(linear(inputs).numpy(), expected, atol=2e-6)


@needed
def test_a_copy_multiplies_alike_and_carries_no_packed_weights():
    linear, inputs = halved(16, 8), torch.randn(3, 16)
    with torch.no_grad():
        expected = linear(inputs)
        for other in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
            assert "_packed" in vars(linear)
            assert "_packed" not in vars(other)
            torch.testing.assert_close(other(inputs), expected, rtol=0, atol=0)


def test_weights_that_half_precision_cannot_hold_stay():
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight[0, 0] = 2 * LARGEST
    halve(linear)
    assert type(linear) is nn.Linear


@needed
def test_what_only_searches_has_them_and_keeps_fingerprint_and_vectors(folder, no_bfloat16):
    searching, training = (Encoder.load(folder, device="cpu", for_search=flag) for flag in (True, False))
    kinds = [{type(one) for one in encoder.backbone.modules()} for encoder in (searching, training)]
    assert HalfLinear in kinds[0]
    assert nn.Linear not in kinds[0]
    assert HalfLinear not in kinds[1]
    assert searching.fingerprint() == training.fingerprint()
    found, exact = searching.encode(TEXTS), training.encode(TEXTS)
    assert (found * exact).sum(axis=1).min() > 0.99999
    assert not np.array_equal(found, exact)
    np.testing.assert_array_equal(copy.deepcopy(searching).encode(TEXTS), found)


def test_where_they_apply(folder, no_bfloat16, monkeypatch):
    assert uses_half_weights("auto", CPU) == has_half_weights(CPU)
    assert not uses_half_weights("float32", CPU)
    assert not uses_half_weights("auto", torch.device("cuda"))
    monkeypatch.setattr("model_code.encoding.hardware.has_bfloat16", lambda device: True)
    assert not uses_half_weights("auto", CPU)
    monkeypatch.setattr(encoders, "halve", None)  # would fail if it were called
    Encoder.load(folder, precision="float32", device="cpu", for_search=True)
