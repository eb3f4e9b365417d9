"""What the benchmarks share: the shape of a row, and timing that one noisy moment cannot decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def row(what: str, ours: float, peer: float, goal: float) -> dict[str, Any]:
    """One result where more is better: `ratio` is ours / peer, and `met` whether it reaches `goal`.

    >>> row("texts/s", ours=30.0, peer=20.0, goal=1.3)["ratio"]
    1.5
    """
    ratio = ours / peer
    return {"what": what, "ours": ours, "peer": peer, "ratio": ratio, "goal": goal, "met": bool(ratio >= goal)}


def best_seconds(tasks: Sequence[Callable[[], Any]], rounds: int = 3) -> list[float]:
    """The shortest wall time of each task over `rounds`; tasks take turns, so that a busy minute hits all alike."""
    best = [float("inf")] * len(tasks)
    for task in tasks:
        task()
    for _ in range(rounds):
        for i, task in enumerate(tasks):
            start = time.perf_counter()
            task()
            best[i] = min(best[i], time.perf_counter() - start)
    return best
