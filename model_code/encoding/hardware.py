"""The device to compute on, its fastest precision, and packed weights for search.

For a query of a few words, the CPU spends most of its time on loading the weights and reordering
them for the multiplication. So an encoder that only searches packs its weights once:

* On CPUs that multiply bfloat16 faster than float32, oneDNN stores bfloat16 weights in its own
  layout. A query then takes two thirds of the time. The vectors equal those of autocast, except for
  rounding in bfloat16.
* On other CPUs, FBGEMM stores weights in half precision (float16), which needs half as many bytes.
  It converts them to float32 to multiply and sum. Only the weights are rounded, with a relative
  error of at most 2^-11. Vectors have a cosine of .999999 to those with float32 weights. Large
  batches are not slower.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model_code.errors import SettingsError
from model_code.settings import require

# Largest absolute weight that half precision can store.
MAX_FLOAT16 = torch.finfo(torch.float16).max

CPU_DESCRIPTION = Path("/proc/cpuinfo")

# Largest number of oneDNN's compiled products that a process which searches keeps. oneDNN compiles
# a product for each shape, and keeps 1,024 by default, each of about half a megabyte. So texts of
# 119 different lengths took 224 MB, and now take 79. Compiling a product again takes less than a
# millisecond. The shapes of queries of 2 to 20 tokens fit.
MAX_CACHED_PRIMITIVES = 128

# Environment variables with the capacities of oneDNN's cache and of PyTorch's cache above it.
PRIMITIVE_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def pick_device(device: str) -> torch.device:
    """Return the device with a name. "auto" is the first GPU, or the CPU if there is no GPU.

    Raises:
        SettingsError: If there is no device of that name, or this machine does not have it.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    refusal = f"device is {device!r}, but must be auto, cpu, cuda or cuda:N"
    try:
        picked = torch.device(device)
    except RuntimeError:
        raise SettingsError(refusal) from None
    # PyTorch knows more devices, such as mps and meta, on which Freshet was never tried.
    require(picked.type in ("cpu", "cuda"), refusal)

    if picked.type == "cuda":
        gpu_count = torch.cuda.device_count()
        gpu_number = picked.index or 0
        require(
            gpu_number < gpu_count,
            f"device is {device!r}, but PyTorch finds {gpu_count} GPUs here, numbered from 0; set "
            "auto, cpu, or the number of one of them",
        )
    return picked


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 in hardware.

    A CPU without it would emulate the products, which is slower than float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def is_faster_in_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 faster than float32.

    With the bfloat16 instructions of AVX-512, CPUs of AMD are 2.2 times as fast as in float32, but
    those of Intel only 0.6 times as fast. With AMX tiles, CPUs of Intel are faster as well.
    """
    if device.type == "cuda":
        return has_bfloat16(device)
    return torch.cpu._is_amx_tile_supported() or (has_bfloat16(device) and _is_amd())


@cache
def _is_amd() -> bool:
    """Return whether the CPU is one of AMD; False on systems without `CPU_DESCRIPTION`."""
    if not CPU_DESCRIPTION.is_file():
        return False
    return "AuthenticAMD" in CPU_DESCRIPTION.read_text(encoding="utf-8")


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Return whether an encoder computes in bfloat16 under autocast.

    Args:
        precision: The setting: "auto", "float32" or "bfloat16".
        device: Device of the encoder.

    >>> uses_bfloat16("float32", torch.device("cpu"))
    False
    """
    if precision == "auto":
        return is_faster_in_bfloat16(device)
    return precision == "bfloat16"


def limit_primitive_caches() -> None:
    """Limit oneDNN's caches to `MAX_CACHED_PRIMITIVES`, unless the environment sets them.

    It has no effect after the first product of the process, because both libraries read the
    variables then.
    """
    for variable in PRIMITIVE_CACHES:
        os.environ.setdefault(variable, str(MAX_CACHED_PRIMITIVES))


def supports_half_precision(device: torch.device) -> bool:
    """Return whether PyTorch can multiply weights in half precision: on CPUs with AVX2."""
    return device.type == "cpu" and torch.backends.quantized.engine in ("x86", "fbgemm")


class PackedLinear(nn.Linear):
    """A linear map (..., in) -> (..., out) with a packed copy of its weights, for inference.

    The original weights stay, so that the state and the fingerprint equal those of `nn.Linear`.
    """

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the packed weights. A copy packs its weights again."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


class HalfLinear(PackedLinear):
    """A linear map with weights in half precision, which sums in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply inputs (..., in) with the packed weights.

        The inputs are float32, or bfloat16 under autocast.
        """
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)

    @cached_property
    def _packed(self) -> Any:
        """The weights in half precision with the biases, in the layout of FBGEMM."""
        return torch.ops.quantized.linear_prepack_fp16(self.weight.detach(), self.bias)


class Bfloat16Linear(PackedLinear):
    """A linear map with weights and results in bfloat16, as under autocast."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply inputs (..., in) with the packed weights.

        The inputs are float32, or bfloat16 under autocast.
        """
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        weight, bias = self._packed
        return torch.ops.mkldnn._linear_pointwise(inputs.bfloat16(), weight, bias, "none", [], "")

    @cached_property
    def _packed(self) -> Any:
        """The weights in the layout of oneDNN, and the biases, both in bfloat16."""
        weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().bfloat16())
        bias = None if self.bias is None else self.bias.detach().bfloat16()
        return weight, bias

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the linear layer from a pickle, for example in a worker on another machine.

        On a CPU without bfloat16, oneDNN raises an error. The layer then becomes an ordinary
        `nn.Linear`, whose products PyTorch emulates.
        """
        super().__setstate__(state)
        if not has_bfloat16(torch.device("cpu")):
            self.__class__ = nn.Linear  # type: ignore[assignment]


def select_packing(precision: str, device: torch.device) -> type[PackedLinear] | None:
    """Return the class of packed linear maps for search, or None if `nn.Linear` is to be kept.

    Args:
        precision: The setting: "auto", "float32" or "bfloat16".
        device: Device of the encoder.

    >>> select_packing("float32", torch.device("cpu")) is None
    True
    """
    is_cpu = device.type == "cpu"
    if is_cpu and uses_bfloat16(precision, device) and has_bfloat16(device):
        return Bfloat16Linear
    if (
        precision == "auto"
        and supports_half_precision(device)
        and not is_faster_in_bfloat16(device)
    ):
        return HalfLinear
    return None


def pack_linear_layers(model: nn.Module, kind: type[PackedLinear]) -> None:
    """Replace a model's linear maps by packed ones, so that it can no longer be trained.

    A map is not replaced if half precision is chosen and a weight exceeds `MAX_FLOAT16`.
    """
    for module in model.modules():
        # A subclass of `nn.Linear` may compute something else, so it is not replaced.
        if type(module) is not nn.Linear:
            continue
        if kind is HalfLinear and module.weight.abs().max() > MAX_FLOAT16:
            continue
        # The weights are packed when the map is first used.
        module.__class__ = kind
