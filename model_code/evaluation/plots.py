"""The report's plots, from the comparison's numbers and training histories; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.evaluation.comparison import SYSTEMS
from model_code.evaluation.plot_data import (
    Estimates,
    History,
    level_table,
    metrics_among,
    recall_table,
    training_table,
)
from model_code.evaluation.plot_style import GRID, INK, Picture, draw, look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def metrics_plot(systems: Estimates, metrics: Sequence[str]) -> Picture:
    """One panel per metric, two side by side, with one dot and its interval per system."""
    names = list(systems)
    rows = -(-len(metrics) // 2)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(rows, min(len(metrics), 2), sharey=True, squeeze=False).flat
        for panel in panels[len(metrics) :]:
            panel.set_axis_off()
        for metric, axes in zip(metrics, panels, strict=False):
            for i, name in enumerate(names):
                _dot(axes, i, "value", systems[name][metric], look(i))
            axes.set(title=metric, yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
            axes.grid(axis="y", visible=False)

    caption = f"{', '.join(metrics)} of each system, with intervals over queries"
    return draw("metrics", caption, (7, rows * (0.27 * len(names) + 0.8)), paint)


def differences_plot(rows: Sequence[Mapping[str, Any]], metric: str) -> Picture | None:
    """The systems' differences on one metric with intervals; filled dots keep p < .05 after Holm's correction."""
    rows = [row for row in rows if row["metric"] == metric and row["family"] == SYSTEMS]
    if not rows:
        return None
    references = list(dict.fromkeys(row["reference"] for row in rows))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=1)
        for i, row in enumerate(rows):
            colour = look(references.index(row["reference"]))
            _dot(axes, i, "difference", row, colour, hollow=row["p_holm"] >= 0.05)
        labels = [f"{row['system']} − {row['reference']}" for row in rows]
        axes.set(yticks=range(len(rows)), yticklabels=labels, ylim=(len(rows) - 0.5, -0.5))
        axes.set_xlabel(f"difference in {metric}")
        axes.grid(axis="y", visible=False)

    caption = f"Paired differences in {metric}, with intervals; filled: p < .05 after Holm's correction"
    return draw("differences", caption, (7, 0.3 * len(rows) + 0.9), paint)


def recall_plot(systems: Estimates) -> Picture | None:
    """Recall against the number of documents looked at, one line per system."""
    table = recall_table(systems)
    if len(table) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        _lines(axes, table, "k", systems)
        axes.set(xlabel="k documents", ylabel="recall R@k")
        _number_ticks(axes, table["k"].tolist())

    return draw("recall", "Share of the relevant documents among the first k, by k", (7, 3.8), paint)


def levels_plot(systems: Estimates) -> Picture | None:
    """How far down the hierarchy the first document's path is right; the last point is the document itself (hit@1)."""
    table = level_table(systems)
    if table.empty:
        return None
    ticks = [f"level {level}" for level in table["level"]]
    if all("hit@1" in metrics for metrics in systems.values()):
        document = {name: metrics["hit@1"]["value"] for name, metrics in systems.items()}
        table = pd.concat([table, pd.DataFrame([{"level": table["level"].max() + 1} | document])])
        ticks.append("document")

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        _lines(axes, table, "level", systems)
        axes.set(ylabel="accuracy of the first hit", xticks=table["level"].tolist(), xticklabels=ticks)

    return draw("levels", "Share of queries whose first document lies in the right node, by level", (7, 3.8), paint)


def training_plot(
    histories: Mapping[str, History], systems: Sequence[str] = (), measured: Sequence[str] = ()
) -> Picture | None:
    """Loss and dev metrics against the step, one line per retriever, in the look it has among `systems`.

    measured: what else of a history's row was measured on dev, beside metrics.
    """
    table = training_table(histories)
    if table.empty:
        return None
    panels = [name for name in ("loss", *metrics_among(table.columns), *measured) if name in table]
    styles = looks(list(dict.fromkeys([*systems, *sorted(histories)])))

    def paint(figure: Figure) -> None:
        for name, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            for retriever, rows in table.groupby("retriever"):
                logged = rows.dropna(subset=[name])
                axes.plot(logged["step"], logged[name], label=retriever, markersize=4, **styles[str(retriever)])
            axes.set(xlabel="step", title=name if name == "loss" else f"dev {name}")
        axes.legend(fontsize=9)

    return draw("training", "Training loss and dev metric by step", (3.6 * len(panels) + 0.6, 3.3), paint)


def sweep_plot(sweep: pd.DataFrame, key: str, metric: str) -> Picture:
    """A metric against the values of the setting `key`, a line per system, as HCE's Figure 4 does for branching.

    sweep: columns value (text, in the order to draw), system, and `metric`.
    """
    values = list(dict.fromkeys(sweep["value"]))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for name, style in looks(list(dict.fromkeys(sweep["system"]))).items():
            found = sweep[sweep["system"] == name].set_index("value")[metric]
            axes.plot(range(len(values)), found.reindex(values), label=name, markersize=5, linewidth=1.6, **style)
        axes.set(xlabel=key, ylabel=metric, xticks=range(len(values)), xticklabels=values)
        _legend_beside(axes)

    return draw("sweep", f"{metric} of each system by {key}", (7, 3.8), paint)


def _dot(
    axes: Axes, row: int, key: str, cell: Mapping[str, Any], style: Mapping[str, str], hollow: bool = False
) -> None:
    """A value with its interval on one row of a dot plot."""
    axes.plot([cell["low"], cell["high"]], [row, row], color=style["color"], linewidth=2, solid_capstyle="round")
    face = "none" if hollow else style["color"]
    axes.plot([cell[key]], [row], linestyle="none", markersize=7, markerfacecolor=face, **style)


def _lines(axes: Axes, table: pd.DataFrame, x: str, systems: Estimates) -> None:
    for name, style in looks(list(systems)).items():
        axes.plot(table[x], table[name], label=name, markersize=5, linewidth=1.6, **style)
    _legend_beside(axes)


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)


def _number_ticks(axes: Axes, numbers: list[int], labels: list[str] | None = None) -> None:
    """Plain numbers in place of powers on a logarithmic axis."""
    axes.set_xticks(numbers, labels or [str(number) for number in numbers])
    axes.minorticks_off()
    axes.tick_params(color=GRID)
