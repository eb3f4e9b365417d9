"""Shared functions of the benchmarks: timing, and the shapes of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Task = Callable[[], Any]


def row(what: str, ours: float, peer: float, goal: float) -> dict[str, Any]:
    """Return a result where more is better: `ratio` is ours / peer, `met` if it reaches `goal`.

    >>> row("texts/s", ours=30.0, peer=20.0, goal=1.3)["ratio"]
    1.5
    """
    ratio = ours / peer
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "goal": goal,
        "met": bool(ratio >= goal),
    }


def row_below(what: str, ours: float, peer: float, most: float = 1.0) -> dict[str, Any]:
    """Return a result where less is better: it is met if ours / peer is at most `most`.

    >>> row_below("seconds", ours=3.0, peer=2.0, most=1.6)["met"]
    True
    """
    ratio = ours / peer
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "goal": f"<= {most:g}",
        "met": bool(ratio <= most),
    }


def row_without_goal(what: str, ours: float, peer: float) -> dict[str, Any]:
    """Return a result without a goal, such as a comparison with the speed of the hardware."""
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer,
        "goal": "-",
        "met": None,
    }


def row_stated(
    what: str, ours: float, peer: float, goal: str, met: bool | None = None
) -> dict[str, Any]:
    """Return a result whose goal is a text, such as "<= 0.1".

    Args:
        what: Name of the row.
        ours: Our value.
        peer: Value to compare with; 0 if no ratio can be computed.
        goal: A goal for `ours`; "-" for none.
        met: Whether the goal is met. None: `ours` is compared with the goal.

    >>> row_stated("seconds", 0.05, 0.1, "<= 0.1")["met"]
    True
    >>> row_stated("errors", 1.0, 10.0, "== 0")["met"]
    False
    """
    if met is None and goal != "-":
        met = _reaches_goal(ours, goal)
    ratio = ours / peer if peer else ours
    return {
        "what": what,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "goal": goal,
        "met": met,
    }


def _reaches_goal(value: float, goal: str) -> bool:
    """Compare a value with a goal such as "<= 0.1" or "== 0"."""
    sign, bound = goal.split()
    if sign == "==":
        return value == float(bound)
    return value <= float(bound)


def median_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row with the median ratio of several runs of one measurement.

    With an even number of rows, it is the lower of the two in the middle. Skipped rows do not
    count, unless all were skipped.

    >>> median_row([row_stated("seconds", value, 0, "-") for value in (9.0, 2.0, 3.0)])["ours"]
    3.0

    Args:
        rows: At least one row.
    """
    measured = [row for row in rows if row["ratio"] is not None]
    if not measured:
        return rows[0]
    measured.sort(key=lambda row: row["ratio"])
    return measured[(len(measured) - 1) // 2]


def skipped(what: str, reason: str) -> dict[str, Any]:
    """Return a row that cannot be measured here, with the reason, so that it stays in the table.

    >>> skipped("texts/s in bfloat16", "this CPU has no bfloat16")["goal"]
    'skipped: this CPU has no bfloat16'
    """
    return {
        "what": what,
        "ours": None,
        "peer": None,
        "ratio": None,
        "goal": f"skipped: {reason}",
        "met": None,
    }


def seconds(task: Task) -> float:
    """Return the wall time of one call, including work on the GPU."""
    import torch

    started = time.perf_counter()
    task()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def all_seconds(tasks: Sequence[Task], rounds: int) -> np.ndarray:
    """Return the seconds of each call (rounds, tasks).

    Tasks alternate, so that other load affects all alike.
    """
    rows = []
    for _ in range(rounds):
        rows.append([seconds(task) for task in tasks])
    return np.array(rows)


def best_seconds(tasks: Sequence[Task], rounds: int = 3) -> list[float]:
    """Return the shortest wall time of each task over `rounds`, after one untimed call of each."""
    for task in tasks:
        task()
    return all_seconds(tasks, rounds).min(axis=0).tolist()


def median_seconds(tasks: Sequence[Task], rounds: int) -> list[float]:
    """Return the median wall time of each task over `rounds`, after one untimed call of each."""
    for task in tasks:
        task()
    return np.median(all_seconds(tasks, rounds), axis=0).tolist()
