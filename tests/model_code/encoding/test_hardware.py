"""Guards products by packed weights: against float64, where they apply, and that nothing else
changes.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from model_code.encoding.encoder import Encoder
from model_code.encoding.hardware import (
    MAX_FLOAT16,
    Bfloat16Linear,
    HalfLinear,
    PackedLinear,
    has_bfloat16,
    has_half_weights,
    pack_linear_layers,
    select_packing,
    uses_bfloat16,
)
from tests.tiny_encoder import make_tiny_encoder

CPU = torch.device("cpu")
TEXTS = [
    "open a file",
    "sort",
    "read a table of comma separated values and sort its rows",
    "a b c d e f g",
]
KINDS = [
    pytest.param(
        HalfLinear,
        marks=pytest.mark.skipif(not has_half_weights(CPU), reason="no such products here"),
    ),
    pytest.param(
        Bfloat16Linear,
        marks=pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions"),
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_encoder(tmp_path_factory.mktemp("packed") / "encoder", TEXTS)


def packed(kind: type[PackedLinear], *sizes: int, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(*sizes, bias=bias)
    pack_linear_layers(linear, kind)
    assert type(linear) is kind
    return linear


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> np.ndarray:
    """In float64, sum by sum."""
    expected = np.empty((*inputs.shape[:-1], len(weight)))
    for row in np.ndindex(*inputs.shape[:-1]):
        for out in range(len(weight)):
            offset = 0.0 if bias is None else float(bias[out])
            expected[row][out] = float((inputs[row].double() * weight[out].double()).sum()) + offset
    return expected


@pytest.mark.parametrize("rows", [(1,), (11,), (2, 5), (3, 1, 40)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_rounded_but_what_is_stated(kind, rows, bias):
    torch.manual_seed(0)
    linear, inputs = packed(kind, 33, 20, bias=bias), torch.randn(*rows, 33)
    with torch.no_grad():
        found = linear(inputs)
        if kind is HalfLinear:
            np.testing.assert_allclose(
                found, product(inputs, linear.weight.half(), linear.bias), atol=2e-6
            )
        else:
            assert found.dtype is torch.bfloat16
            offset = linear.bias.bfloat16() if bias else None
            expected = product(inputs.bfloat16(), linear.weight.bfloat16(), offset)
            np.testing.assert_allclose(found.float(), expected, atol=1e-6, rtol=2**-8)


@pytest.mark.parametrize("kind", KINDS)
def test_copied_layer_drops_packed_weights(kind):
    linear, inputs = packed(kind, 16, 8), torch.randn(3, 16)
    with torch.no_grad():
        expected = linear(inputs)
        for other in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
            assert "_packed" in vars(linear)
            assert "_packed" not in vars(other)
            torch.testing.assert_close(other(inputs), expected, rtol=0, atol=0)


def test_weights_that_half_precision_cannot_hold_stay():
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight[0, 0] = 2 * MAX_FLOAT16
    pack_linear_layers(linear, HalfLinear)
    assert type(linear) is nn.Linear


@pytest.mark.parametrize(("kind", "cosine"), [(HalfLinear, 0.99999), (Bfloat16Linear, 0.9995)])
def test_packing_keeps_fingerprint_and_vectors(folder, kind, cosine, monkeypatch):
    monkeypatch.setattr(
        "model_code.encoding.hardware.gains_by_bfloat16", lambda device: kind is Bfloat16Linear
    )
    if select_packing("auto", CPU) is not kind:
        pytest.skip("not on this CPU")
    searching, training, plain = (
        Encoder.load(folder, precision=precision, device="cpu", for_search=for_search)
        for precision, for_search in (("auto", True), ("auto", False), ("float32", True))
    )
    kinds = [
        {type(one) for one in encoder.backbone.modules()}
        for encoder in (searching, training, plain)
    ]
    assert [(kind in one, nn.Linear in one) for one in kinds] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert searching.fingerprint() == training.fingerprint()
    found, exact = searching.encode(TEXTS), plain.encode(TEXTS)
    assert (found * exact).sum(axis=1).min() > cosine
    assert not np.array_equal(found, exact)
    np.testing.assert_array_equal(copy.deepcopy(searching).encode(TEXTS), found)


@pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions")
def test_packed_bfloat16_gives_the_vectors_of_autocast(folder):
    searching, plain = (
        Encoder.load(folder, precision="bfloat16", device="cpu", for_search=flag) for flag in (1, 0)
    )
    np.testing.assert_allclose(searching.encode(TEXTS), plain.encode(TEXTS), atol=2**-7)


@pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions")
def test_on_a_worker_without_bfloat16_it_is_emulated(monkeypatch):
    linear, inputs = packed(Bfloat16Linear, 16, 8), torch.randn(3, 16)
    stored = pickle.dumps(linear)
    monkeypatch.setattr("model_code.encoding.hardware.has_bfloat16", lambda device: False)
    other = pickle.loads(stored)
    assert type(other) is nn.Linear
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(other(inputs), linear(inputs), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("avx512", "tiles", "amd", "gains"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (True, False, False, False),
        (True, True, False, True),
    ],
)
def test_packing_prefers_bfloat16_where_it_is_faster(monkeypatch, avx512, tiles, amd, gains):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr("model_code.encoding.hardware._is_amd", lambda: amd)
    assert uses_bfloat16("auto", CPU) is gains
    assert uses_bfloat16("bfloat16", CPU)
    assert select_packing("bfloat16", CPU) is (Bfloat16Linear if avx512 else None), (
        "emulated: as autocast does it"
    )
    assert select_packing("auto", CPU) is (
        Bfloat16Linear if gains else HalfLinear if has_half_weights(CPU) else None
    )
    assert select_packing("float32", CPU) is None
    assert select_packing("auto", torch.device("cuda")) is None
