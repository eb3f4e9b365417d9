"""Effectiveness against each cost: a dot per system, hollow for variants, and the line of those that nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_code.evaluation.comparison import is_variant
from model_code.evaluation.plots import COLOURS, INK, MARKERS, Picture, draw, look
from orchestration.pipeline.costs.compare import CostComparison, Costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = {
    "p50_ms": ("latency", "time of a query, median (ms)"),
    "bytes_per_document": ("bytes", "index on disk (bytes per document)"),
    "index_ms": ("indexing", "time to index (ms per document)"),
    "searchable_seconds": ("searchable", "training and indexing together (s)"),
    "memory_mb": ("memory", "most memory in training or indexing (MB)"),
}


def cost_plots(comparison: CostComparison) -> list[Picture]:
    """One plot per cost that at least two systems have."""
    plots = [_plot(comparison, cost, name, axis) for cost, (name, axis) in COSTS.items()]
    return [picture for picture in plots if picture]


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, value) points that no other one beats: as cheap or cheaper, and better; by rising cost.

    >>> front([(1, .5), (2, .4), (3, .7), (3, .6)])
    [(1, 0.5), (3, 0.7)]
    """
    kept: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or value > kept[-1][1]:
            kept.append((cost, value))
    return kept


def styles(systems: Sequence[str]) -> dict[str, dict[str, str]]:
    """A look per system; a variant has the colour of its own system, a marker of its kind, and no filling."""
    plain = [name for name in systems if not is_variant(name)]
    kinds = sorted({name.partition(".")[2] for name in systems if is_variant(name)})
    found = {name: look(i) for i, name in enumerate(plain)}
    for name in systems:
        if is_variant(name):
            own, _, kind = name.partition(".")
            colour = found[own]["color"] if own in found else COLOURS[0]
            marker = MARKERS[kinds.index(kind) % len(MARKERS)]
            found[name] = {"color": colour, "marker": marker, "markerfacecolor": "none"}
    return {name: found[name] for name in systems}


def _plot(comparison: CostComparison, cost: str, name: str, axis: str) -> Picture | None:
    systems = [one for one in comparison.systems if getattr(one, cost) is not None]
    if len(systems) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        _front_line(axes, [(getattr(one, cost), one.value) for one in systems])
        _dots(axes, systems, cost, styles([one.system for one in comparison.systems]))
        axes.set(xlabel=axis, ylabel=f"{comparison.metric} on {comparison.split}")
        _plain_numbers(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)

    caption = (
        f"{comparison.metric} by {axis}; vertical lines: intervals over queries; dashed: nothing is better and cheaper"
    )
    return draw(f"cost_{name}", caption, (7.5, max(3.8, 0.21 * len(systems) + 0.6)), paint)


def _dots(axes: Axes, systems: Sequence[Costs], cost: str, looks: dict[str, dict[str, str]]) -> None:
    for one in systems:
        x, style = getattr(one, cost), looks[one.system]
        axes.plot([x, x], [one.low, one.high], color=style["color"], linewidth=1, alpha=0.45)
        axes.plot([x], [one.value], linestyle="none", markersize=7, label=one.system, **style)


def _front_line(axes: Axes, points: list[tuple[float, float]]) -> None:
    costs, values = zip(*front(points), strict=True)
    axes.plot(costs, values, color=INK, linewidth=0.9, linestyle="--", alpha=0.6, drawstyle="steps-post", zorder=1)


def _plain_numbers(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 times each power of ten, written out: a power alone leaves most axes without a label."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
