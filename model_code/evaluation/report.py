"""The comparison as a report for people: which tables and plots, in which order, as Markdown and as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_code.evaluation.comparison import SYSTEMS, VARIANTS
from model_code.evaluation.html_page import html_page
from model_code.evaluation.plot_style import Picture
from model_code.evaluation.report_tables import (
    Cell,
    Table,
    differences_table,
    headline_metrics,
    judged_by,
    metrics_table,
)

GROUPS = {
    "unseen": "queries none of whose relevant documents answers a query of another split: ",
    "seen": "queries with a relevant document that also answers a query of another split: ",
}
DEV_NOTE = "dev queries chose checkpoints and settings, so trained systems look better here than they are: "


@dataclass(frozen=True)
class Report:
    """What the report says, before it is written down: `details` are tables for who wants to know more."""

    title: str
    lead: str
    tables: tuple[Table, ...]
    details: tuple[Table, ...]
    pictures: tuple[Picture, ...]

    def markdown(self) -> str:
        """The report as Markdown; pictures are links to files beside it, details are in the HTML page alone."""
        blocks = [f"# {self.title}", self.lead]
        blocks += [block for table in self.tables for block in _table_blocks(table)]
        blocks += [f"![{picture.caption}]({picture.name}.png)" for picture in self.pictures]
        return "\n\n".join(blocks) + "\n"

    def html(self) -> str:
        """The report as one self-contained page."""
        return html_page(self.title, self.lead, self.tables, self.details, self.pictures)


def make_report(comparison: Mapping[str, Any], pictures: Sequence[Picture]) -> Report:
    """Lay out `comparison.json` (see `stages.comparison`) and the plots."""
    main, confidence = comparison["main_metric"], comparison["confidence"]
    metrics = list(next(iter(comparison["systems"].values())))
    headline = headline_metrics(main, metrics)
    tables = [
        metrics_table(comparison, headline, "Results", confidence),
        differences_table(comparison, main, SYSTEMS, f"Differences in {main}", confidence),
        differences_table(comparison, main, VARIANTS, f"Variants: differences in {main}", confidence),
    ]
    for name, part in comparison["groups"].items():
        title = f"{name.capitalize()} documents"
        tables.append(metrics_table(part, headline, title, confidence, GROUPS[name]))
        tables.append(differences_table(part, main, SYSTEMS, f"{title}: differences in {main}", confidence))
    if comparison["dev"]:
        tables.append(metrics_table(comparison["dev"], headline, "Dev", confidence, DEV_NOTE))
    details = [metrics_table(comparison, metrics, "All metrics", confidence)]
    others = [metric for metric in metrics if metric != main]
    for metric in others:
        details.append(differences_table(comparison, metric, SYSTEMS, f"Differences in {metric}", confidence))
        title = f"Variants: differences in {metric}"
        details.append(differences_table(comparison, metric, VARIANTS, title, confidence))
    lead = f"{len(comparison['systems'])} systems on {judged_by(comparison)}."
    return Report("Comparison", lead, _filled(tables), _filled(details), tuple(pictures))


def _filled(tables: Sequence[Table]) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def _table_blocks(table: Table) -> list[str]:
    lines = [_line(table.columns), _line(["---", *["---:"] * (len(table.columns) - 1)])]
    lines += [_line([_cell(cell) for cell in row]) for row in table.rows]
    return [f"## {table.title}", f"{table.caption}.", "\n".join(lines)]


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _cell(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    return f"{f'**{text}**' if cell.best else text} {cell.detail}".strip()
