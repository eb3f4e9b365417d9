"""Which device to compute on, and in which precision it multiplies best."""

from __future__ import annotations

import torch

from model_code.errors import SettingsError


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
        raise SettingsError(f"device is {device!r}, but must be auto, cpu, cuda or cuda:N") from None


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 in hardware; a CPU without it would emulate, slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether to autocast to bfloat16 on `device` under the setting `precision` ("auto", "float32" or "bfloat16").

    >>> uses_bfloat16("float32", torch.device("cpu"))
    False
    """
    return precision == "bfloat16" or (precision == "auto" and has_bfloat16(device))


def has_half_weights(device: torch.device) -> bool:
    """Whether torch has the products of half-precision weights for `device`: a CPU with AVX2."""
    return device.type == "cpu" and torch.backends.quantized.engine in ("x86", "fbgemm")


def uses_half_weights(precision: str, device: torch.device) -> bool:
    """Whether to keep an encoder's weights in half precision on `device` when it only searches.

    >>> uses_half_weights("float32", torch.device("cpu"))
    False
    """
    return precision == "auto" and has_half_weights(device) and not has_bfloat16(device)
