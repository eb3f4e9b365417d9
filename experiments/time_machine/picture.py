"""Draw effectiveness and cost over time, one line per policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Policies in the picture. Other policies are only in the tables.
DRAWN = ("frozen", "plain", "freshet", "retrain")
COLOURS = {"frozen": "#888888", "plain": "#e08a00", "freshet": "#0a7d4f", "retrain": "#3b5bdb"}
MARKERS = {"frozen": "s", "plain": "^", "freshet": "o", "retrain": "D"}
DOTS_PER_INCH = 110


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the means over all seeds.

    Args:
        result: Result of a stream.
        path: The picture to write.
    """
    # The import takes a second. It is done here, because other modules do not need matplotlib.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in DRAWN if name in result["summary"]]
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4.2))
    for name in names:
        # Measurements of each seed at the steps that all seeds have reached, the first day first.
        rows_by_seed = []
        for rows in result["seeds"].values():
            if name in rows:
                rows_by_seed.append(rows[name][: result["steps"] + 1])
        steps = [row["step"] for row in rows_by_seed[0]]
        style = {
            "color": COLOURS[name],
            "marker": MARKERS[name],
            "markersize": 4,
            "label": result["labels"][name],
        }
        left.plot(steps, mean_over_seeds(rows_by_seed, "everything"), **style)
        # No document has arrived on the first day.
        middle.plot(steps[1:], mean_over_seeds(rows_by_seed, "arrived")[1:], **style)
        # The build of the first day is the same for all policies, and is not counted.
        seconds = mean_over_seeds(rows_by_seed, "seconds")
        seconds[0] = 0.0
        right.plot(steps, np.cumsum(seconds), **style)

    left.set_title("nDCG@10, all documents")
    middle.set_title("nDCG@10, documents that arrived")
    right.set_title("processor seconds since the first day")
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
        axis.tick_params(axis="x", rotation=45, labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    left.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def mean_over_seeds(rows_by_seed: Sequence[Sequence[Mapping[str, Any]]], name: str) -> np.ndarray:
    """Return the mean of a value over the seeds at each step (s,).

    It is NaN at steps at which a seed has no value.
    """
    seeds: list[np.ndarray] = []
    for rows in rows_by_seed:
        # None becomes NaN.
        seeds.append(np.array([row[name] for row in rows], float))
    return np.mean(seeds, axis=0)
