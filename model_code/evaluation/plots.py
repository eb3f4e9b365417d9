"""Pictures of comparisons and trainings, as PNG. Equal numbers give equal bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from model_code.evaluation.metrics import filter_metrics

STYLE = {
    # This font is part of matplotlib, so that pictures are equal on every machine.
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
Estimates = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""{"value", "low", "high", ...} by system and metric, as `compare_systems` returns it."""


def draw(size: tuple[float, float], paint: Callable[[Figure], None]) -> bytes:
    """Return a figure as PNG, independent of the user's matplotlib settings.

    Args:
        size: Width and height in inches.
        paint: Draws into the figure.
    """
    png = BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        paint(figure)
        figure.savefig(png, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return png.getvalue()


def systems_plot(systems: Estimates, metrics: Sequence[str]) -> bytes:
    """Draw one panel per metric, in two columns, with a dot and an interval per system."""
    names = list(systems)
    columns = min(len(metrics), 2)
    rows = math.ceil(len(metrics) / 2)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
        # An odd number of metrics leaves one panel empty.
        for panel in panels[len(metrics) :]:
            panel.set_axis_off()

        for metric, axes in zip(metrics, panels, strict=False):
            for i, name in enumerate(names):
                cell = systems[name][metric]
                axes.plot([cell["low"], cell["high"]], [i, i], color=f"C{i}", linewidth=2)
                axes.plot([cell["value"]], [i], "o", color=f"C{i}")
            axes.set(
                title=metric,
                yticks=range(len(names)),
                yticklabels=names,
                ylim=(len(names) - 0.5, -0.5),
            )

    height = rows * (0.27 * len(names) + 0.8)
    return draw((7, height), paint)


def training_plot(
    history: Sequence[Mapping[str, Any]], measured: Sequence[str] = ()
) -> bytes | None:
    """Draw the loss and the dev metrics of a training against the step.

    Args:
        history: Rows with "step" and values.
        measured: Names of further values of the rows that were measured on dev.

    Returns:
        A PNG, or None if the history has none of these values.
    """
    names = list(dict.fromkeys(name for row in history for name in row))
    wanted = ["loss", *filter_metrics(names), *measured]
    panels = [name for name in wanted if name in names]
    if not panels:
        return None

    def paint(figure: Figure) -> None:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for name, axes in zip(panels, all_axes, strict=True):
            rows = [row for row in history if name in row]
            steps = [row["step"] for row in rows]
            values = [row[name] for row in rows]
            axes.plot(steps, values, marker="o", markersize=3)
            title = name if name == "loss" else f"dev {name}"
            axes.set(xlabel="step", title=title)

    return draw((3.6 * len(panels), 3.3), paint)
