"""Which device to compute on, in which precision it multiplies best, and weights packed as it reads
them fastest.

An encoder that only searches multiplies a query of a few words once with every weight, and most of
that time is spent fetching weights and putting them into the order in which they are multiplied. So
they are packed once:

* On CPUs that multiply bfloat16 faster than float32, oneDNN gets bfloat16 weights in its own order, and gives the
  vectors that autocast gives, up to its rounding, for a query in two thirds of the time.
* On other CPUs, FBGEMM gets weights in half precision, half as many bytes, widens them on the way and multiplies and
  sums in float32. Nothing but the weights is rounded, each by at most 2^-11 of itself: vectors keep a cosine of .999999
  to those of float32. Long batches are neither faster nor slower.
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model_code.errors import SettingsError

LARGEST = torch.finfo(torch.float16).max  # weights beyond it would be cut


def pick_device(device: str) -> torch.device:
    """The device that `device` names; "auto" is the first GPU if there is one, else the CPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise SettingsError(
            f"device is {device!r}, but must be auto, cpu, cuda or cuda:N"
        ) from None


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 in hardware; a CPU without it would emulate, slower than
    float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def gains_by_bfloat16(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 faster than float32.

    With AVX-512's instructions alone AMD's CPUs are 2.2 times as fast, and Intel's, which have
    tiles (AMX) for that, .6 times.
    """
    if device.type == "cuda":
        return has_bfloat16(device)
    return torch.cpu._is_amx_tile_supported() or (has_bfloat16(device) and _is_amd())


@cache
def _is_amd() -> bool:
    described = Path("/proc/cpuinfo")
    return described.is_file() and "AuthenticAMD" in described.read_text(encoding="utf-8")


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether to autocast to bfloat16 on `device` under the setting `precision` ("auto", "float32"
    or "bfloat16").

    >>> uses_bfloat16("float32", torch.device("cpu"))
    False
    """
    return precision == "bfloat16" or (precision == "auto" and gains_by_bfloat16(device))


def has_half_weights(device: torch.device) -> bool:
    """Whether torch has the products of half-precision weights for `device`: a CPU with AVX2."""
    return device.type == "cpu" and torch.backends.quantized.engine in ("x86", "fbgemm")


class PackedLinear(nn.Linear):
    """A linear map (..., in) -> (..., out), for inference; state and fingerprint stay those of
    `nn.Linear`.
    """

    def __getstate__(self) -> dict[str, Any]:
        """The state without the packed copy, which is made again where a copy of the module needs
        it.
        """
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


class HalfLinear(PackedLinear):
    """A map by weights in half precision, summed in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (..., in) float32, or bfloat16 under autocast."""
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)

    @cached_property
    def _packed(self) -> Any:
        return torch.ops.quantized.linear_prepack_fp16(self.weight.detach(), self.bias)


class Bfloat16Linear(PackedLinear):
    """A map by weights in bfloat16, to a result in bfloat16, as under autocast."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (..., in) float32, or bfloat16 under autocast."""
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        weight, bias = self._packed
        return torch.ops.mkldnn._linear_pointwise(inputs.bfloat16(), weight, bias, "none", [], "")

    @cached_property
    def _packed(self) -> Any:
        weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().bfloat16())
        return weight, None if self.bias is None else self.bias.detach().bfloat16()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """On a worker whose CPU has no bfloat16, it is emulated, as under autocast: oneDNN would
        refuse.
        """
        super().__setstate__(state)
        if not has_bfloat16(torch.device("cpu")):
            self.__class__ = nn.Linear  # type: ignore[assignment]


def select_packing(precision: str, device: torch.device) -> type[PackedLinear] | None:
    """The products for an encoder that only searches on `device` under the setting `precision`;
    None: torch's own.

    >>> select_packing("float32", torch.device("cpu")) is None
    True
    """
    if device.type == "cpu" and uses_bfloat16(precision, device) and has_bfloat16(device):
        return Bfloat16Linear
    return (
        HalfLinear
        if precision == "auto" and has_half_weights(device) and not gains_by_bfloat16(device)
        else None
    )


def pack_linear_layers(model: nn.Module, kind: type[PackedLinear]) -> None:
    """From now on multiply by packed copies of the weights of `model`, which is not to be trained
    any more.
    """
    for module in model.modules():
        if type(module) is nn.Linear and (
            kind is not HalfLinear or module.weight.abs().max() <= LARGEST
        ):
            module.__class__ = kind
