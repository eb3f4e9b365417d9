"""The comparison with costs as Markdown, one HTML page and plots, and which system to choose by what matters most."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.evaluation.comparison import is_variant
from model_code.evaluation.plots import COLOURS, INK, MARKERS, Picture, draw, look
from model_code.evaluation.report import Cell, ReportPage, Table, judged_by
from model_code.files import write_json, write_text
from orchestration.pipeline.costs import ROUNDS, CostComparison, Costs, K

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
UNKNOWN = "not recorded"
COLUMNS = {
    "p50_ms": ("query p50 (ms)", 2),
    "p95_ms": ("query p95 (ms)", 2),
    "bytes_per_document": ("bytes per document", 0),
    "index_ms": ("indexing (ms per document)", 2),
    "index_seconds": ("indexing (s)", 1),
    "train_seconds": ("training (s)", 1),
    "memory_mb": ("most memory (MB)", 0),
}
CAPTION = (
    f"latency: queries asked one at a time for {K} documents, each the median of {ROUNDS} rounds in which the systems "
    "take turns; bytes: the whole index folder, which a variant shares with its system, and BM25's beside it for the "
    "two hybrids; times and memory: of the stages' own processes, as recorded when they ran with today's code, inputs "
    "and settings; BM25 is indexed anew here; bold: the least of a column"
)


@dataclass(frozen=True)
class Recommendation:
    """`system` is the one to take for `goal`; `value` says in words what it reaches."""

    goal: str
    system: str
    value: str


def choices(comparison: CostComparison) -> list[Recommendation]:
    """One choice per goal, where there is something to go by; ties go to the more effective system."""
    metric, split, systems = comparison.metric, comparison.split, comparison.systems
    best = max(systems, key=lambda row: row.value)
    near = [row for row in systems if row.value >= best.low]
    candidates = [
        _choice(f"best {metric} on {split}", systems, lambda row: -row.value, lambda row: f"{row.value:.3f}"),
        _choice(f"best {metric} on dev", systems, lambda row: _negative(row.dev), lambda row: f"{row.dev:.3f}"),
        _choice("fastest query", systems, lambda row: row.p50_ms, lambda row: f"{row.p50_ms:.1f} ms at the median"),
        _choice("smallest index", systems, lambda row: row.bytes_per_document, _bytes),
        _choice("soonest searchable", systems, lambda row: row.searchable_seconds, _searchable),
        _choice(
            "fastest query within the best one's interval", near, lambda row: row.p50_ms,
            lambda row: f"{row.p50_ms:.1f} ms, {metric} {row.value:.3f}",
        ),
        _choice(
            "smallest index within the best one's interval", near, lambda row: row.bytes_per_document,
            lambda row: f"{_bytes(row)}, {metric} {row.value:.3f}",
        ),
    ]  # fmt: skip
    return [choice for choice in candidates if choice]


def _choice(
    goal: str, systems: Sequence[Costs], cost: Callable[[Costs], float | None], say: Callable[[Costs], str]
) -> Recommendation | None:
    """The system of least cost among those whose cost is known."""
    known = [(value, -one.value, i) for i, one in enumerate(systems) if (value := cost(one)) is not None]
    if not known:
        return None
    chosen = systems[min(known)[2]]
    return Recommendation(goal, chosen.system, say(chosen))


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _bytes(costs: Costs) -> str:
    return f"{costs.bytes_per_document:,.0f} bytes per document"


def _searchable(costs: Costs) -> str:
    return f"after {costs.searchable_seconds:,.1f} s of training and indexing"


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
    looks = {name: look(i) for i, name in enumerate(plain)}
    for name in systems:
        if is_variant(name):
            base, _, kind = name.partition(".")
            colour = looks[base]["color"] if base in looks else COLOURS[0]
            marker = MARKERS[kinds.index(kind) % len(MARKERS)]
            looks[name] = {"color": colour, "marker": marker, "markerfacecolor": "none"}
    return {name: looks[name] for name in systems}


def _plot(comparison: CostComparison, cost: str, name: str, axis: str) -> Picture | None:
    systems = [row for row in comparison.systems if getattr(row, cost) is not None]
    if len(systems) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        _front_line(axes, [(getattr(row, cost), row.value) for row in systems])
        _dots(axes, systems, cost, styles([row.system for row in comparison.systems]))
        axes.set(xlabel=axis, ylabel=f"{comparison.metric} on {comparison.split}")
        _plain_numbers(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)

    caption = (
        f"{comparison.metric} by {axis}; vertical lines: intervals over queries; dashed: nothing is better and cheaper"
    )
    return draw(f"cost_{name}", caption, (7.5, max(3.8, 0.21 * len(systems) + 0.6)), paint)


def _dots(axes: Axes, systems: Sequence[Costs], cost: str, looks: dict[str, dict[str, str]]) -> None:
    for row in systems:
        x, style = getattr(row, cost), looks[row.system]
        axes.plot([x, x], [row.low, row.high], color=style["color"], linewidth=1, alpha=0.45)
        axes.plot([x], [row.value], linestyle="none", markersize=7, label=row.system, **style)


def _front_line(axes: Axes, points: list[tuple[float, float]]) -> None:
    costs, values = zip(*front(points), strict=True)
    axes.plot(costs, values, color=INK, linewidth=0.9, linestyle="--", alpha=0.6, drawstyle="steps-post", zorder=1)


def _plain_numbers(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 times each power of ten, written out: a power alone leaves most axes without a label."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def as_dict(comparison: CostComparison) -> dict[str, Any]:
    """Everything as plain values: the facts, one object per system under its name, and the choices."""
    facts = dataclasses.asdict(comparison)
    systems = {row.pop("system"): row for row in facts.pop("systems")}
    return facts | {"systems": systems, "choices": [dataclasses.asdict(choice) for choice in choices(comparison)]}


def write_report(comparison: CostComparison, folder: Path) -> Path:
    """Write comparison.{md,html,json} and the plots to `folder`; returns the page."""
    pictures = cost_plots(comparison)
    report = ReportPage("Comparison with costs", lead(comparison), tables(comparison), (), tuple(pictures))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("cost_*.png"):
        old.unlink()
    for picture in pictures:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    write_json(folder / "comparison.json", as_dict(comparison))
    write_text(folder / "comparison.md", report.markdown())
    write_text(folder / "comparison.html", report.html())
    return folder / "comparison.html"


def lead(comparison: CostComparison) -> str:
    """On what everything stands, and which systems are missing."""
    facts = {"queries": comparison.queries, "split": comparison.split, "source": comparison.source}
    text = (
        f"{len(comparison.systems)} systems over {comparison.documents:,} documents; {comparison.metric} on "
        f"{judged_by(facts)}; latency of {comparison.timed:,} of these queries."
    )
    return text + (f" Compared before, but not built now: {', '.join(comparison.absent)}." if comparison.absent else "")


def tables(comparison: CostComparison) -> tuple[Table, ...]:
    """Which to choose, then every number."""
    return choice_table(comparison), cost_table(comparison)


def choice_table(comparison: CostComparison) -> Table:
    """One row per goal."""
    rows = tuple((Cell(choice.goal), Cell(choice.system), Cell(choice.value)) for choice in choices(comparison))
    caption = "computed from the table below; of equals, the more effective one"
    return Table("Which to choose", caption, ("what matters", "system", "reaches"), rows)


def cost_table(comparison: CostComparison) -> Table:
    """Systems by effectiveness and costs."""
    best = max(row.value for row in comparison.systems)
    least = {cost: _least([getattr(row, cost) for row in comparison.systems]) for cost in COLUMNS}
    rows = [
        (
            Cell(row.system),
            Cell(f"{row.value:.3f}", f"[{row.low:.3f}, {row.high:.3f}]", best=row.value == best),
            *(_cell(getattr(row, cost), digits, least[cost]) for cost, (_, digits) in COLUMNS.items()),
        )
        for row in comparison.systems
    ]
    names = ("system", comparison.metric, *(title for title, _ in COLUMNS.values()))
    return Table("Effectiveness and costs", CAPTION, names, tuple(rows))


def _least(values: Sequence[float | None]) -> float | None:
    """The smallest value that costs anything: what is not trained wins no prize for the time of training."""
    return min((value for value in values if value), default=None)


def _cell(value: float | None, digits: int, least: float | None) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(f"{value:,.{digits}f}", best=value == least)
