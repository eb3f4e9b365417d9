"""The comparison with costs as Markdown, one HTML page and plots, and as text for the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_code.evaluation.report import Cell, Report, Table, judged_by
from model_code.files import write_json, write_text
from orchestration.pipeline.costs.choice import choices
from orchestration.pipeline.costs.compare import ROUNDS, CostComparison, K
from orchestration.pipeline.costs.plots import cost_plots

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


def as_dict(comparison: CostComparison) -> dict[str, Any]:
    """Everything as plain values: the facts, one object per system under its name, and the choices."""
    facts = dataclasses.asdict(comparison)
    systems = {row.pop("system"): row for row in facts.pop("systems")}
    return facts | {"systems": systems, "choices": [dataclasses.asdict(choice) for choice in choices(comparison)]}


def write_report(comparison: CostComparison, folder: Path) -> Path:
    """Write comparison.{md,html,json} and the plots to `folder`; returns the page."""
    pictures = cost_plots(comparison)
    report = Report("Comparison with costs", lead(comparison), tables(comparison), (), tuple(pictures))
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
    rows = tuple((Cell(one.goal), Cell(one.system), Cell(one.value)) for one in choices(comparison))
    caption = "computed from the table below; of equals, the more effective one"
    return Table("Which to choose", caption, ("what matters", "system", "reaches"), rows)


def cost_table(comparison: CostComparison) -> Table:
    """Systems by effectiveness and costs."""
    best = max(one.value for one in comparison.systems)
    least = {cost: _least([getattr(one, cost) for one in comparison.systems]) for cost in COLUMNS}
    rows = [
        (
            Cell(one.system),
            Cell(f"{one.value:.3f}", f"[{one.low:.3f}, {one.high:.3f}]", best=one.value == best),
            *(_cell(getattr(one, cost), digits, least[cost]) for cost, (_, digits) in COLUMNS.items()),
        )
        for one in comparison.systems
    ]
    names = ("system", comparison.metric, *(title for title, _ in COLUMNS.values()))
    return Table("Effectiveness and costs", CAPTION, names, tuple(rows))


def table_text(table: Table) -> str:
    """A table as aligned text, without what qualifies its numbers."""
    rows = [table.columns, *(tuple(cell.text for cell in row) for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _least(values: Sequence[float | None]) -> float | None:
    """The smallest value that costs anything: what is not trained wins no prize for the time of training."""
    return min((value for value in values if value), default=None)


def _cell(value: float | None, digits: int, least: float | None) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(f"{value:,.{digits}f}", best=value == least)
