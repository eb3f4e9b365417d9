"""Matrix products by weights that are kept in half precision, on CPUs that multiply no bfloat16.

A query of a few words is multiplied once with every weight of the encoder, and most of that time is spent fetching
weights. In half precision there are half as many bytes to fetch. FBGEMM, which comes with torch, widens them on the way
and multiplies and sums in float32, so that nothing but the weights is rounded, each by at most 2^-11 of itself: vectors
keep a cosine of .999999 to those of float32. Long batches are neither faster nor slower.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = torch.finfo(torch.float16).max  # weights beyond it would be cut


def halve(model: nn.Module) -> None:
    """From now on multiply by half-precision copies of the weights of `model`, which is not to be trained any more.

    The weights themselves, and with them state and fingerprint, stay as they are.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.abs().max() <= LARGEST:
            module.__class__ = HalfLinear


class HalfLinear(nn.Linear):
    """A linear map (..., in) -> (..., out) by weights in half precision, for inference on a CPU."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (..., in) float32."""
        if inputs.device.type != "cpu":
            return super().forward(inputs)
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)

    @cached_property
    def _packed(self) -> Any:
        return torch.ops.quantized.linear_prepack_fp16(self.weight.detach(), self.bias)

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed copy, which is made again where a copy of the module needs it."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}
