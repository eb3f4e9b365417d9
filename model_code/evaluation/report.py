"""The comparison as a report for people: its tables, and with the plots one Markdown file and one HTML page.

The page is one file: no scripts, no addresses outside it, light or dark as the reader's system is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from model_code.evaluation.comparison import SYSTEMS, VARIANTS, caveats
from model_code.evaluation.plots import Picture

HEADLINE = ("hit@1", "MRR@10", "R@100")  # beside the main metric, where measured
GROUPS = {
    "unseen": "queries none of whose relevant documents answers a query of another split: ",
    "seen": "queries with a relevant document that also answers a query of another split: ",
}
LONG = 24  # characters of a cell that may break
MARK = "✓"  # before a relevant document
DEV_NOTE = "dev queries chose checkpoints and settings, so trained systems look better here than they are: "
JUDGES = {
    "qrels": "judged by the corpus's own qrels",
    "pseudo-queries": "held-out pseudo-queries, each judged by the document it was made from (the corpus has no qrels)",
}


@dataclass(frozen=True)
class Cell:
    """A number or word, what qualifies it (an interval), and whether it is the best of its column."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """`caption` says on which queries, by which judge and by which statistics the cells were made."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def judged_by(part: Mapping[str, Any]) -> str:
    """On how many queries a table stands, and who judged them.

    >>> judged_by({"queries": 1324, "split": "test", "source": "qrels"})
    "1,324 test queries, judged by the corpus's own qrels"
    """
    return f"{part['queries']:,} {part['split']} queries, {JUDGES[part['source']]}"


def headline_metrics(main_metric: str, metrics: Sequence[str]) -> list[str]:
    """The main metric and those of `HEADLINE` that were measured."""
    return list(dict.fromkeys([main_metric, *(name for name in HEADLINE if name in metrics)]))


def metrics_table(
    part: Mapping[str, Any], metrics: Sequence[str], title: str, confidence: float, note: str = ""
) -> Table:
    """Systems by metrics, each value with its interval, the best of each column marked; `note` opens the caption."""
    systems = part["systems"]
    best = {metric: max(estimates[metric]["value"] for estimates in systems.values()) for metric in metrics}
    rows = [
        (Cell(name), *(_estimate(estimates[metric], best[metric]) for metric in metrics))
        for name, estimates in systems.items()
    ]
    caption = f"{note}{judged_by(part)}; brackets: {confidence:.0%} bootstrap interval over queries"
    return Table(title, caption, ("system", *metrics), tuple(rows))


def differences_table(part: Mapping[str, Any], metric: str, family: str, title: str, confidence: float) -> Table:
    """One family's paired differences on one metric, with interval, p and Holm-corrected p."""
    rows = [
        (
            Cell(f"{row['system']} − {row['reference']}"),
            Cell(f"{row['difference']:+.3f}", f"[{row['low']:+.3f}, {row['high']:+.3f}]"),
            Cell(spoken_p(row["p"])),
            Cell(spoken_p(row["p_holm"]), best=row["p_holm"] < 0.05),
        )
        for row in part["differences"]
        if row["metric"] == metric and row["family"] == family
    ]
    caption = (
        f"{judged_by(part)}; paired differences, brackets: {confidence:.0%} bootstrap interval; p: two-sided paired "
        f"randomisation test; p (Holm): corrected over the {len(rows)} differences of this table, bold below .05"
    )
    return Table(title, caption, ("difference", metric, "p", "p (Holm)"), tuple(rows))


def examples_table(comparison: Mapping[str, Any], outcome: str) -> Table:
    """The queries that the best system `won` or `lost` against the next best, with what both found first."""
    found, main = comparison["examples"], comparison["main_metric"]
    names = [found[name] for name in ("system", "reference")] if found else ["", ""]

    def ranking(documents: Sequence[tuple[str, bool]]) -> Cell:
        return Cell("; ".join(f"{MARK} {name}" if relevant else name for name, relevant in documents))

    rows = [
        (Cell(row["query"]), Cell(f"{row['difference']:+.3f}"), *(ranking(row["first"][name]) for name in names))
        for row in found.get(outcome, ())
    ]
    title = f"Queries that {names[0]} {outcome} against {names[1]}"
    caption = f"those with the largest differences in {main}; the first documents of both, {MARK} where judged relevant"
    return Table(title, caption, ("query", main, *names), tuple(rows))


def spoken_p(p: float) -> str:
    """A p-value in three digits.

    >>> spoken_p(0.00012), spoken_p(0.0321), spoken_p(1.0)
    ('< 0.001', '0.032', '1.000')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _estimate(cell: Mapping[str, float], best: float) -> Cell:
    return Cell(f"{cell['value']:.3f}", f"[{cell['low']:.3f}, {cell['high']:.3f}]", best=cell["value"] == best)


STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #57606a; --ground: #ffffff; --line: #d8dee4; --band: #f6f8fa;
  --best: #0b6b3a }
@media (prefers-color-scheme: dark) { :root { --ink: #d5d9de; --soft: #9aa4ae; --ground: #14171b; --line: #30363d;
  --band: #1c2128; --best: #56d393 } }
body { margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 70rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { margin: 0; font-size: 1.9rem; letter-spacing: -.02em }
h2 { margin: 2.4rem 0 .2rem; font-size: 1.15rem }
p { margin: .2rem 0 .8rem; color: var(--soft); max-width: 52rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .9rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { padding-left: .2rem; text-align: left; font-weight: 600 }
thead th { border-bottom-width: 2px; color: var(--soft); font-size: .85rem }
tbody tr:hover { background: var(--band) }
td.text { max-width: 24rem; white-space: normal; overflow-wrap: anywhere; text-align: left }
td small { display: block; color: var(--soft); font-size: .75rem }
td b { color: var(--best) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1.5rem;
  margin-top: 2rem }
figure { margin: 0 }
figure img { width: 100%; height: auto }
figcaption { color: var(--soft); font-size: .85rem }
details { margin-top: 2.4rem; border-top: 1px solid var(--line); padding-top: 1rem }
summary { cursor: pointer; font-weight: 600 }
"""


def html_page(
    title: str, lead: str, tables: Sequence[Table], details: Sequence[Table], pictures: Sequence[Picture]
) -> str:
    """Put the first table, the plots, the other tables and, folded, the details on one page."""
    first, *others = [_html_table(table) for table in tables]
    plots = "\n".join(_figure(picture) for picture in pictures)
    folded = "\n".join(_html_table(table) for table in details)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<h1>{escape(title)}</h1>
<p>{escape(lead)}</p>
{first}
<div class="plots">
{plots}
</div>
{"".join(others)}
{f"<details><summary>All metrics and differences</summary>{folded}</details>" if details else ""}
</html>
"""


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in table.rows)
    return f"""<h2>{escape(table.title)}</h2>
<p>{escape(table.caption)}.</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>
"""


def _html_cell(cell: Cell) -> str:
    text = escape(cell.text)
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    kind = ' class="text"' if len(cell.text) > LONG else ""
    return f"<td{kind}>{f'<b>{text}</b>' if cell.best else text}{detail}</td>"


def _figure(picture: Picture) -> str:
    caption = escape(picture.caption)
    return f'<figure><img src="{picture.data_uri}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'


@dataclass(frozen=True)
class ReportPage:
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


def make_report(comparison: Mapping[str, Any], pictures: Sequence[Picture]) -> ReportPage:
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
    tables += [examples_table(comparison, outcome) for outcome in ("won", "lost")]
    details = [metrics_table(comparison, metrics, "All metrics", confidence)]
    others = [metric for metric in metrics if metric != main]
    for metric in others:
        details.append(differences_table(comparison, metric, SYSTEMS, f"Differences in {metric}", confidence))
        title = f"Variants: differences in {metric}"
        details.append(differences_table(comparison, metric, VARIANTS, title, confidence))
    return ReportPage("Comparison", lead(comparison), _filled(tables), _filled(details), tuple(pictures))


def lead(comparison: Mapping[str, Any]) -> str:
    """Which system is best, by how much, and on what: the report's first sentence; before it only what limits it."""
    main, systems = comparison["main_metric"], comparison["systems"]
    best, *others = sorted(systems, key=lambda name: -systems[name][main]["value"])
    cell = systems[best][main]
    ahead = f", {cell['value'] - systems[others[0]][main]['value']:.3f} above {others[0]}" if others else ""
    before = "".join(f"{line[0].upper()}{line[1:]}. " for line in caveats(comparison))
    return before + (
        f"{best} is the best of {len(systems)} systems: {main} {cell['value']:.3f} "
        f"[{cell['low']:.3f}, {cell['high']:.3f}]{ahead}, on {comparison['documents']:,} documents and "
        f"{judged_by(comparison)}."
    )


def _filled(tables: Sequence[Table]) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def _table_blocks(table: Table) -> list[str]:
    lines = [_line(table.columns), _line(["---", *["---:"] * (len(table.columns) - 1)])]
    lines += [_line([_markdown_cell(cell) for cell in row]) for row in table.rows]
    return [f"## {table.title}", f"{table.caption}.", "\n".join(lines)]


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _markdown_cell(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    return f"{f'**{text}**' if cell.best else text} {cell.detail}".strip()
