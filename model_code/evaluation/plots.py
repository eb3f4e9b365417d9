"""Pictures of the comparison and of trainings, as PNG. Equal numbers give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from model_code.evaluation.metrics import filter_metrics

STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
# system -> metric -> {"value", "low", "high", "queries"}
Estimates = Mapping[str, Mapping[str, Mapping[str, float]]]


def draw(size: tuple[float, float], paint: Callable[[Figure], None]) -> bytes:
    """Let `paint` fill a figure of `size` inches, whatever the user's own settings of matplotlib
    are.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure, png = Figure(figsize=size), BytesIO()
        FigureCanvasAgg(figure)
        paint(figure)
        figure.savefig(png, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return png.getvalue()


def systems_plot(systems: Estimates, metrics: Sequence[str]) -> bytes:
    """One panel per metric, two side by side, with one dot and its interval per system."""
    names, rows = list(systems), -(-len(metrics) // 2)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(rows, min(len(metrics), 2), sharey=True, squeeze=False).flat
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

    return draw((7, rows * (0.27 * len(names) + 0.8)), paint)


def training_plot(
    history: Sequence[Mapping[str, Any]], measured: Sequence[str] = ()
) -> bytes | None:
    """Loss and dev metrics of a training against the step; None without any.

    measured: what else of a history's row was measured on dev, beside metrics.
    """
    names = list(dict.fromkeys(name for row in history for name in row))
    panels = [name for name in ("loss", *filter_metrics(names), *measured) if name in names]
    if not panels:
        return None

    def paint(figure: Figure) -> None:
        for name, axes in zip(
            panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True
        ):
            logged = [(row["step"], row[name]) for row in history if name in row]
            axes.plot(*zip(*logged, strict=True), marker="o", markersize=3)
            axes.set(xlabel="step", title=name if name == "loss" else f"dev {name}")

    return draw((3.6 * len(panels), 3.3), paint)
