"""Accelerate's `Accelerator` for one training run: device, mixed precision, accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from model_code.encoding.hardware import uses_bfloat16
from model_code.settings import require

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_accelerator(device: torch.device, precision: str, accumulation: int = 1) -> Accelerator:
    """An accelerator on `device`; precision: "auto", "float32" or "bfloat16", as in `EncoderSettings`.

    accumulation: batches of a step, which the processes share evenly; SettingsError if they cannot. A step's gradient
    is the mean over its batches, so it does not depend on how many processes there are.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    on_cpu = device.type == "cpu"
    processes = PartialState(cpu=on_cpu).num_processes
    require(
        accumulation % processes == 0,
        f"accumulation is {accumulation}, but {processes} processes share the batches of a step: set a multiple of it",
    )
    if processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)  # a process may train one model after another
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # accelerate takes the current one
    mixed = "bf16" if uses_bfloat16(precision, device) else "no"
    return Accelerator(cpu=on_cpu, mixed_precision=mixed, gradient_accumulation_steps=accumulation // processes)
