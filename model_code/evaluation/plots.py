"""The report's plots, from the comparison's numbers and training histories; None where there is nothing to draw."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.errors import SettingsError
from model_code.evaluation.comparison import SYSTEMS
from model_code.evaluation.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, INK_ON_DARK, GRID = "#24292f", "#d5d9de", "#8c959f"
COLOURS = ("#7f7f7f", "#e69f00", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#0072b2", "#8c6d31")
MARKERS = "osD^vPX*"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "freshet",  # ids in the file would be random without it
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
THEMED = f"<style>:root{{color:{INK}}}@media(prefers-color-scheme:dark){{:root{{color:{INK_ON_DARK}}}}}</style>"


@dataclass(frozen=True)
class Picture:
    """A finished plot: file name without suffix, what it shows in words, and its bytes."""

    name: str
    caption: str
    png: bytes
    svg: str

    @property
    def data_uri(self) -> str:
        """The SVG as an address that an `<img>` of a self-contained page can hold."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def draw(name: str, caption: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> Picture:
    """Let `paint` fill a figure of `size` inches in the common style. Equal paintings give equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        paint(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, for both files
        png, svg = BytesIO(), StringIO()
        figure.savefig(png, format="png", dpi=150, facecolor="white", metadata={"Software": None})
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Picture(name, caption, png.getvalue(), _themed(svg.getvalue()))


def look(index: int) -> dict[str, str]:
    """Colour and marker of the system at a place of the list: 64 of them can be told apart, 8 without colour."""
    lap = index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[(index + lap) % len(MARKERS)]}


def looks(systems: Sequence[str]) -> dict[str, dict[str, str]]:
    """One look per system, the same in every plot that lists them in this order.

    >>> looks(["bm25", "hce"])["bm25"]
    {'color': '#7f7f7f', 'marker': 'o'}
    """
    return {system: look(i) for i, system in enumerate(systems)}


def _themed(svg: str) -> str:
    """The bare `<svg>` element, with our ink replaced by the colour of the page's theme."""
    head, opening, rest = svg.partition("<svg ")
    attributes, _, content = rest.partition(">")
    return f"{opening}{attributes}>{THEMED}{content.replace(INK, 'currentColor')}"


Estimates = Mapping[str, Mapping[str, Mapping[str, float]]]  # system -> metric -> {"value", "low", "high", "queries"}
History = Sequence[Mapping[str, Any]]  # rows of a training run: step, loss, its parts, a dev metric where evaluated


def recall_table(systems: Estimates) -> pd.DataFrame:
    """R@k against k: columns k and one per system, the shape that DVC draws as one line each."""
    cutoffs = {name: int(name[2:]) for name in _metrics(systems) if name.startswith("R@")}
    return _by_number(systems, "k", cutoffs)


def level_table(systems: Estimates) -> pd.DataFrame:
    """Accuracy of the first document's path against the hierarchy's level; columns level and one per system."""
    levels = {name: int(name[6:]) for name in _metrics(systems) if name.startswith("level@")}
    return _by_number(systems, "level", levels)


def training_table(histories: Mapping[str, History]) -> pd.DataFrame:
    """All training histories in one: columns retriever, step, then whatever was logged; empty where it was not."""
    rows = [{"retriever": name} | dict(row) for name, history in sorted(histories.items()) for row in history]
    return pd.DataFrame(rows, columns=None if rows else ["retriever", "step", "loss"])


def metrics_among(names: Iterable[str]) -> list[str]:
    """Those names that are metrics: of a history's row, what was measured on dev.

    >>> metrics_among(["step", "loss", "nDCG@10"])
    ['nDCG@10']
    """
    return [name for name in names if _is_metric(name)]


def _metrics(systems: Estimates) -> list[str]:
    return list(next(iter(systems.values()), {}))


def _by_number(systems: Estimates, axis: str, numbers: Mapping[str, int]) -> pd.DataFrame:
    ordered = sorted(numbers, key=lambda metric: numbers[metric])
    columns = {name: [metrics[metric]["value"] for metric in ordered] for name, metrics in systems.items()}
    return pd.DataFrame({axis: [numbers[metric] for metric in ordered]} | columns)


def _is_metric(name: str) -> bool:
    try:
        Metric.parse(name)
    except SettingsError:
        return False
    return True


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


def _number_ticks(axes: Axes, numbers: list[int]) -> None:
    """Plain numbers in place of powers on a logarithmic axis."""
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.tick_params(color=GRID)
