"""Matrix products by weights that are packed once, as the CPU reads them fastest, for encoders that only search.

A query of a few words is multiplied once with every weight of the encoder, and most of that time is spent fetching
weights and putting them into the order in which they are multiplied.

* On CPUs that multiply bfloat16, oneDNN gets bfloat16 weights in its own order, and gives the vectors that autocast
  gives, up to its rounding, for a query in two thirds of the time.
* On other CPUs, FBGEMM gets weights in half precision, half as many bytes, widens them on the way and multiplies and
  sums in float32. Nothing but the weights is rounded, each by at most 2^-11 of itself: vectors keep a cosine of .999999
  to those of float32. Long batches are neither faster nor slower.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from model_code.encoding.hardware import has_bfloat16, uses_bfloat16, uses_half_weights

LARGEST = torch.finfo(torch.float16).max  # weights beyond it would be cut


class PackedLinear(nn.Linear):
    """A linear map (..., in) -> (..., out), for inference; state and fingerprint stay those of `nn.Linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (..., in) float32, or bfloat16 under autocast."""
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        return self._multiply(inputs)

    def _multiply(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    @cached_property
    def _packed(self) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed copy, which is made again where a copy of the module needs it."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


class HalfLinear(PackedLinear):
    """By weights in half precision, summed in float32."""

    def _multiply(self, inputs: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)

    @cached_property
    def _packed(self) -> Any:
        return torch.ops.quantized.linear_prepack_fp16(self.weight.detach(), self.bias)


class Bfloat16Linear(PackedLinear):
    """By weights in bfloat16, to a result in bfloat16, as under autocast."""

    def _multiply(self, inputs: Tensor) -> Tensor:
        weight, bias = self._packed
        return torch.ops.mkldnn._linear_pointwise(inputs.bfloat16(), weight, bias, "none", [], "")

    @cached_property
    def _packed(self) -> Any:
        weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().bfloat16())
        return weight, None if self.bias is None else self.bias.detach().bfloat16()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """On a worker whose CPU has no bfloat16, it is emulated, as under autocast: oneDNN would refuse."""
        super().__setstate__(state)
        if not has_bfloat16(torch.device("cpu")):
            self.__class__ = nn.Linear  # type: ignore[assignment]


def packing(precision: str, device: torch.device) -> type[PackedLinear] | None:
    """The products for an encoder that only searches on `device` under the setting `precision`; None: torch's own.

    >>> packing("float32", torch.device("cpu")) is None
    True
    """
    if device.type == "cpu" and uses_bfloat16(precision, device) and has_bfloat16(device):
        return Bfloat16Linear
    return HalfLinear if uses_half_weights(precision, device) else None


def pack(model: nn.Module, kind: type[PackedLinear]) -> None:
    """From now on multiply by packed copies of the weights of `model`, which is not to be trained any more."""
    for module in model.modules():
        if type(module) is nn.Linear and (kind is not HalfLinear or module.weight.abs().max() <= LARGEST):
            module.__class__ = kind
