"""Test products by packed weights: rounding, where they apply, and what they leave unchanged."""

from __future__ import annotations

import copy
import os
import pickle
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from model_code.encoding.encoder import Encoder
from model_code.encoding.hardware import (
    MAX_CACHED_PRIMITIVES,
    MAX_FLOAT16,
    PRIMITIVE_CACHES,
    Bfloat16Linear,
    HalfLinear,
    PackedLinear,
    has_bfloat16,
    pack_linear_layers,
    pick_device,
    select_packing,
    supports_half_precision,
    uses_bfloat16,
)
from model_code.errors import SettingsError
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
        marks=pytest.mark.skipif(not supports_half_precision(CPU), reason="no such products here"),
    ),
    pytest.param(
        Bfloat16Linear,
        marks=pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions"),
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_encoder(tmp_path_factory.mktemp("packed") / "encoder", TEXTS)


def test_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", Mock(return_value=1))

    assert pick_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(SettingsError, match="'cuda:1', but PyTorch finds 1 GPUs"):
        pick_device("cuda:1")


@pytest.mark.parametrize("device", ["mps", "meta", "gpu"])
def test_other_device_is_refused(device):
    with pytest.raises(SettingsError, match="must be auto, cpu, cuda or cuda:N"):
        pick_device(device)


def packed_linear(kind: type[PackedLinear], *sizes: int, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(*sizes, bias=bias)
    pack_linear_layers(linear, kind)
    assert type(linear) is kind
    return linear


def product_by_loops(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> np.ndarray:
    """Return the product of a linear layer in float64, sum by sum."""
    weight = weight.detach()
    product = np.empty((*inputs.shape[:-1], len(weight)))
    for row in np.ndindex(*inputs.shape[:-1]):
        for unit in range(len(weight)):
            value = float((inputs[row].double() * weight[unit].double()).sum())
            if bias is not None:
                value += float(bias[unit])
            product[row][unit] = value
    return product


ROW_SHAPES = [(1,), (11,), (2, 5), (3, 1, 40)]


@pytest.mark.skipif(not supports_half_precision(CPU), reason="no such products here")
@pytest.mark.parametrize("rows", ROW_SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_half_precision_rounds_weights_alone(rows, bias):
    torch.manual_seed(0)
    linear = packed_linear(HalfLinear, 33, 20, bias=bias)
    inputs = torch.randn(*rows, 33)

    with torch.no_grad():
        product = linear(inputs)

    expected = product_by_loops(inputs, linear.weight.half(), linear.bias)
    np.testing.assert_allclose(product, expected, atol=2e-6)


@pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions")
@pytest.mark.parametrize("rows", ROW_SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_rounds_inputs_weights_and_products(rows, bias):
    torch.manual_seed(0)
    linear = packed_linear(Bfloat16Linear, 33, 20, bias=bias)
    inputs = torch.randn(*rows, 33)

    with torch.no_grad():
        product = linear(inputs)

    offset = linear.bias.bfloat16() if bias else None
    expected = product_by_loops(inputs.bfloat16(), linear.weight.bfloat16(), offset)
    assert product.dtype is torch.bfloat16
    np.testing.assert_allclose(product.float(), expected, atol=1e-6, rtol=2**-8)


def copy_by_pickle(linear: nn.Linear) -> nn.Linear:
    return pickle.loads(pickle.dumps(linear))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy_layer", [copy.deepcopy, copy_by_pickle])
def test_copied_layer_drops_packed_weights(kind, copy_layer):
    linear = packed_linear(kind, 16, 8)
    inputs = torch.randn(3, 16)
    with torch.no_grad():
        expected = linear(inputs)

        copied = copy_layer(linear)

        assert "_packed" in vars(linear)
        assert "_packed" not in vars(copied)
        torch.testing.assert_close(copied(inputs), expected, rtol=0, atol=0)


def test_weights_above_half_precision_are_not_packed():
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight[0, 0] = 2 * MAX_FLOAT16

    pack_linear_layers(linear, HalfLinear)

    assert type(linear) is nn.Linear


def layer_types(encoder: Encoder) -> set[type[nn.Module]]:
    return {type(module) for module in encoder.backbone.modules()}


@pytest.fixture(params=[HalfLinear, Bfloat16Linear])
def selected_kind(request, monkeypatch) -> type[PackedLinear]:
    """Return a kind of packing that is selected on this machine for precision "auto"."""
    kind = request.param

    def is_faster_in_bfloat16(device):
        return kind is Bfloat16Linear

    monkeypatch.setattr("model_code.encoding.hardware.is_faster_in_bfloat16", is_faster_in_bfloat16)
    if select_packing("auto", CPU) is not kind:
        pytest.skip("not on this CPU")
    return kind


def load(folder, precision: str, for_search: bool) -> Encoder:
    return Encoder.load(folder, precision=precision, device="cpu", for_search=for_search)


def test_only_encoders_for_search_are_packed(folder, selected_kind):
    searching = layer_types(load(folder, "auto", for_search=True))
    training = layer_types(load(folder, "auto", for_search=False))
    exact = layer_types(load(folder, "float32", for_search=True))

    assert selected_kind in searching
    assert nn.Linear not in searching
    assert selected_kind not in training
    assert nn.Linear in training
    assert selected_kind not in exact
    assert nn.Linear in exact


def test_packing_keeps_the_fingerprint(folder, selected_kind):
    searching = load(folder, "auto", for_search=True)
    training = load(folder, "auto", for_search=False)

    assert searching.fingerprint() == training.fingerprint()


def test_packing_keeps_vectors_close(folder, selected_kind):
    lowest_cosine = {HalfLinear: 0.99999, Bfloat16Linear: 0.9995}[selected_kind]

    vectors = load(folder, "auto", for_search=True).encode_queries(TEXTS)

    exact_vectors = load(folder, "float32", for_search=True).encode_queries(TEXTS)
    assert (vectors * exact_vectors).sum(axis=1).min() > lowest_cosine
    assert not np.array_equal(vectors, exact_vectors)


def test_copied_encoder_gives_the_same_vectors(folder, selected_kind):
    searching = load(folder, "auto", for_search=True)

    copied = copy.deepcopy(searching)

    np.testing.assert_array_equal(copied.encode_queries(TEXTS), searching.encode_queries(TEXTS))


@pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions")
def test_packed_bfloat16_gives_the_vectors_of_autocast(folder):
    packed = load(folder, "bfloat16", for_search=True)
    autocast = load(folder, "bfloat16", for_search=False)

    np.testing.assert_allclose(
        packed.encode_queries(TEXTS), autocast.encode_queries(TEXTS), atol=2**-7
    )


@pytest.mark.skipif(not has_bfloat16(CPU), reason="no bfloat16 instructions")
def test_worker_without_bfloat16_emulates_it(monkeypatch):
    linear = packed_linear(Bfloat16Linear, 16, 8)
    inputs = torch.randn(3, 16)
    stored = pickle.dumps(linear)

    def has_no_bfloat16(device):
        return False

    monkeypatch.setattr("model_code.encoding.hardware.has_bfloat16", has_no_bfloat16)
    loaded = pickle.loads(stored)

    assert type(loaded) is nn.Linear
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loaded(inputs), linear(inputs), rtol=2**-7, atol=2**-7)


class Cpu(NamedTuple):
    """Features of a CPU on which packing depends."""

    has_avx512_bf16: bool
    has_amx_tiles: bool
    is_amd: bool


@pytest.fixture
def set_cpu(monkeypatch):
    """Make this machine look like another CPU."""

    def set_features(cpu: Cpu) -> None:
        monkeypatch.setattr(
            torch.cpu, "_is_avx512_bf16_supported", Mock(return_value=cpu.has_avx512_bf16)
        )
        monkeypatch.setattr(
            torch.cpu, "_is_amx_tile_supported", Mock(return_value=cpu.has_amx_tiles)
        )
        monkeypatch.setattr("model_code.encoding.hardware._is_amd", Mock(return_value=cpu.is_amd))

    return set_features


OLD_CPU = Cpu(has_avx512_bf16=False, has_amx_tiles=False, is_amd=True)
AMD_CPU = Cpu(has_avx512_bf16=True, has_amx_tiles=False, is_amd=True)
INTEL_CPU = Cpu(has_avx512_bf16=True, has_amx_tiles=False, is_amd=False)
INTEL_CPU_WITH_TILES = Cpu(has_avx512_bf16=True, has_amx_tiles=True, is_amd=False)


@pytest.mark.parametrize("cpu", [AMD_CPU, INTEL_CPU_WITH_TILES])
def test_bfloat16_is_selected_where_it_is_faster(set_cpu, cpu):
    set_cpu(cpu)

    assert uses_bfloat16("auto", CPU)
    assert select_packing("auto", CPU) is Bfloat16Linear


@pytest.mark.parametrize("cpu", [OLD_CPU, INTEL_CPU])
def test_half_precision_is_selected_elsewhere(set_cpu, cpu):
    set_cpu(cpu)

    assert not uses_bfloat16("auto", CPU)
    expected = HalfLinear if supports_half_precision(CPU) else None
    assert select_packing("auto", CPU) is expected


@pytest.mark.parametrize("cpu", [OLD_CPU, AMD_CPU, INTEL_CPU, INTEL_CPU_WITH_TILES])
def test_requested_bfloat16_is_packed_if_it_is_not_emulated(set_cpu, cpu):
    set_cpu(cpu)

    assert uses_bfloat16("bfloat16", CPU)
    expected = Bfloat16Linear if cpu.has_avx512_bf16 else None
    assert select_packing("bfloat16", CPU) is expected


@pytest.mark.parametrize("cpu", [OLD_CPU, AMD_CPU, INTEL_CPU, INTEL_CPU_WITH_TILES])
def test_float32_and_gpus_are_not_packed(set_cpu, cpu):
    set_cpu(cpu)

    assert select_packing("float32", CPU) is None
    assert select_packing("auto", torch.device("cuda")) is None


def test_encoders_for_search_limit_the_cached_products(folder, monkeypatch):
    cache, other_cache = PRIMITIVE_CACHES
    monkeypatch.delenv(cache, raising=False)
    monkeypatch.setenv(other_cache, "7")

    Encoder.load(folder, device="cpu", for_search=True)

    assert os.environ[cache] == str(MAX_CACHED_PRIMITIVES)
    assert os.environ[other_cache] == "7"
