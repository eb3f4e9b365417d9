"""Exponents of cost against size of corpus, fitted and drawn; each is held to what its algorithm promises."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encode import BASE
from benchmarks.growth import costs
from benchmarks.measuring import row_below
from model_code.progress import Progress, silent

SIZES, LARGE = (1_000, 10_000, 100_000), 1_000_000
PROMISED = {  # exponents: why, and what of it need not be, is in benchmarks/README.md
    "encode": 1.0,
    "cluster top-down": 4 / 3,
    "cluster bottom-up": 5 / 3,
    "memory of clustering": 1.0,
    "build an approximate index": 1.5,
    "memory of an approximate index": 1.0,
    "search, exact": 1.0,
    "search, approximate": 0.5,
    f"add {costs.ADDED} to an index, exact": 1.0,
    f"add {costs.ADDED} to an index, approximate": 1.0,
}
SLACK = 0.1  # of an exponent over two decades: a factor of 1.6 in time


def rows(
    sizes: Sequence[int] = SIZES,
    dimension: int = 384,
    base: str | Path = BASE,
    output: Path | None = None,
    large: bool = False,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """A row per part: ours is its exponent, the peer the promised one, the goal at most `SLACK` more.

    output: a folder to leave growth.png in; None: that of `FRESHET_BENCH_OUTPUT`, if it is set. large: up to a million.
    """
    sizes = [*sizes, LARGE] if large else list(sizes)
    found = []
    for done, size in enumerate(sizes, start=1):
        found.append(costs.measure(size, dimension, base))
        progress(done, len(sizes), "sizes")
    measured = {name: [cost[name] for cost in found] for name in PROMISED}
    folder = output or (Path(os.environ["FRESHET_BENCH_OUTPUT"]) if os.environ.get("FRESHET_BENCH_OUTPUT") else None)
    if folder:
        from benchmarks.growth.picture import draw

        draw(folder / "growth.png", sizes, measured)
    return exponent_rows(sizes, measured)


def exponent_rows(sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Met where the promised exponent is exceeded by at most `SLACK`."""
    table = []
    for name, values in measured.items():
        unit = "MiB" if name.startswith("memory") else "s"
        steps = ", ".join(f"{value:.3g}" for value in values)
        what = f"{name}, {unit} at {', '.join(f'{size:,}' for size in sizes)}: {steps}: exponent"
        ours, promised = exponent(sizes, values), PROMISED[name]
        table.append(row_below(what, ours, promised) | {"goal": f"<= {promised + SLACK:.2f}"})
        table[-1]["met"] = bool(ours <= promised + SLACK)
    return table


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The e of cost ~ size^e, by least squares of the logarithms.

    >>> round(exponent([10, 100, 1000], [3, 30, 300]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])
