"""The limits of the machine: how fast it reads memory and multiplies matrices."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.measurement import Task, seconds

# Bytes that `read_rate` reads. They are far more than any cache holds.
READ_BYTES = 2**28
# Side of the square matrices that `matrix_rate` multiplies, by type of device.
SIDE = {"cpu": 1536, "cuda": 8192}


def read_rate(device: str = "cpu", rounds: int = 5) -> float:
    """Return bytes per second of summing an array larger than any cache; the best of `rounds`."""
    array = torch.ones(READ_BYTES // 4, device=device)
    fastest = min(seconds(array.sum) for _ in range(rounds))
    return READ_BYTES / fastest


def matrix_rate(device: str = "cpu", dtype: torch.dtype = torch.float32, rounds: int = 5) -> float:
    """Return the FLOP/s of a product of two square matrices, the best of `rounds`.

    On a CPU it is the better of torch and numpy.
    """
    side = SIDE[torch.device(device).type]
    left = torch.rand(side, side, device=device).to(dtype)
    right = torch.rand(side, side, device=device).to(dtype)

    def multiply_in_torch() -> torch.Tensor:
        return left @ right

    def multiply_in_numpy() -> np.ndarray:
        return left.numpy() @ right.numpy()

    tasks: list[Task] = [multiply_in_torch]
    if device == "cpu" and dtype is torch.float32:
        tasks.append(multiply_in_numpy)
    fastest = min(min(seconds(task) for _ in range(rounds)) for task in tasks)
    return 2.0 * side**3 / fastest
