"""What the machine can do at most, measured: how fast it reads memory and how fast it multiplies matrices."""

from __future__ import annotations

import torch

from benchmarks.measuring import seconds

READ_BYTES = 2**28  # far more than any cache holds
SIDE = {"cpu": 1536, "cuda": 8192}  # of the square matrices


def read_rate(device: str = "cpu", rounds: int = 5) -> float:
    """Bytes per second of summing an array that no cache holds; the best of `rounds`."""
    array = torch.ones(READ_BYTES // 4, device=device)
    return READ_BYTES / min(seconds(array.sum) for _ in range(rounds))


def matrix_rate(device: str = "cpu", dtype: torch.dtype = torch.float32, rounds: int = 5) -> float:
    """FLOP/s of a product of two square matrices; the best of `rounds`, and on a CPU of torch's routine and numpy's."""
    side = SIDE[torch.device(device).type]
    left, right = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    tasks = [lambda: left @ right]
    if device == "cpu" and dtype is torch.float32:
        tasks.append(lambda: left.numpy() @ right.numpy())
    return 2.0 * side**3 / min(seconds(task) for task in tasks for _ in range(rounds))
