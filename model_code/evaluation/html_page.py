"""The report as one HTML file: no scripts, no addresses outside it, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from model_code.evaluation.plot_style import Picture
from model_code.evaluation.report_tables import Cell, Table

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
    first, *others = [_table(table) for table in tables]
    plots = "\n".join(_figure(picture) for picture in pictures)
    folded = "\n".join(_table(table) for table in details)
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


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return f"""<h2>{escape(table.title)}</h2>
<p>{escape(table.caption)}.</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>
"""


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    return f"<td>{f'<b>{text}</b>' if cell.best else text}{detail}</td>"


def _figure(picture: Picture) -> str:
    caption = escape(picture.caption)
    return f'<figure><img src="{picture.data_uri}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
