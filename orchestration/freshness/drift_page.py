"""Show a drift report as an HTML page, without scripts or external addresses.

The page explains each measure: its value, its threshold, its p-value, its meaning, and documents
that illustrate it. It shows ids and titles of documents, and never the text of a query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.drift.descriptions import DESCRIPTIONS, MeasureDescription, format_percent
from model_code.files import write_json, write_text
from model_code.project import Project

# Folder in the project's state for the newest report. Erasing a document deletes the folder,
# because the files name documents.
FOLDER = "drift"
JSON_FILE = "report.json"
PAGE_FILE = "report.html"

# Stands for the description of a measure that this version of Freshet does not know.
UNKNOWN_MEASURE = MeasureDescription("", "", examples="Documents", example_value="Value")
DECISION_MEANINGS = {
    "no action": "Documents are searchable as they are; nothing else happens.",
    "retune": "The weights of the live fusion are chosen again. The gate decides about them.",
    "pilot": "A short training on a sample tells whether a retrain would help.",
    "retrain": "A full build on the live documents is due. The gate decides about its result.",
}
SCOPE_TEXTS = {"batch": "newest batch", "window": "last batches"}
NO_TITLE = "no longer live"

# Width of the picture of a measure, in its own units. A margin keeps marks inside the picture.
SCALE_WIDTH = 400
SCALE_MARGIN = 12
SCALE_HEIGHT = 40

STYLE = """
:root { color-scheme: light dark; --page: #fdfdfc; --text: #1d2430; --muted: #566072;
  --line: #d5d9e0; --card: #f4f5f7; --beyond: #a8231b; --within: #1d6b3a; --band: #b9c4d6 }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --text: #e6e9ee; --muted: #a5afbf;
  --line: #39404c; --card: #1d2229; --beyond: #ff9087; --within: #79d59b; --band: #46546b } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { margin: 0; font-size: 1.6rem } h2 { margin: 2.2rem 0 .5rem; font-size: 1.2rem }
h3 { margin: 1rem 0 .3rem; font-size: 1rem } p { margin: .4rem 0 }
.muted { color: var(--muted) }
.decision { margin: 1.2rem 0; padding: 1rem 1.2rem; background: var(--card);
  border-left: .35rem solid var(--muted); border-radius: .3rem }
.decision.retune, .decision.pilot, .decision.retrain { border-color: var(--beyond) }
.decision h2 { margin-top: 0 }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { text-align: left; padding: .3rem 0; color: var(--muted) }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top }
.number { text-align: right; white-space: nowrap }
.beyond { color: var(--beyond); font-weight: 600 } .within { color: var(--within) }
section.measure { border-top: 1px solid var(--line); margin-top: 1.6rem }
code, .id { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
svg { display: block; width: 100%; max-width: 26rem; height: auto; margin: .4rem 0 }
.key { font-size: .8rem; margin-top: 0 }
.axis { stroke: var(--line); stroke-width: 2 } .null { fill: var(--band) }
.median { stroke: var(--muted); stroke-width: 2 }
.limit { stroke: var(--beyond); stroke-width: 2; stroke-dasharray: 4 3 }
.value { fill: var(--text) }
"""


def drift_files(project: Project) -> tuple[Path, Path]:
    """Return the paths of the newest report as JSON and as a page."""
    folder = project.state / FOLDER
    return folder / JSON_FILE, folder / PAGE_FILE


def write_drift_files(project: Project, row: Mapping[str, Any], page: str) -> None:
    """Write a drift report as JSON and, beside it, as a page.

    Args:
        project: The project.
        row: Row of the report in the ledger; see `render_page`.
        page: The page of the report.
    """
    json_path, page_path = drift_files(project)
    write_json(json_path, dict(row))
    write_text(page_path, page)


def newest_page(project: Project, searcher: Searcher) -> str | None:
    """Return the page of the newest drift report; None if there is none.

    Titles are read from the live collection. A document that was deleted since has no title.

    Args:
        project: The project.
        searcher: Searcher of the retriever whose report is shown.
    """
    ledger = open_ledger_if_exists(project, searcher.generation.retriever)
    if ledger is None:
        return None
    with ledger:
        rows = ledger.recent_drift_reports(1)
    if not rows:
        return None
    return page_with_titles(rows[0], searcher)


def page_with_titles(row: Mapping[str, Any], searcher: Searcher) -> str:
    """Return the page of a report with the titles of live documents.

    Args:
        row: Row of the report in the ledger; see `render_page`.
        searcher: Searcher of the live collection.
    """
    return render_page(row, read_titles(searcher, example_ids(row["report"])))


def example_ids(record: Mapping[str, Any]) -> list[str]:
    """Return the ids of all documents that a report names, without repetitions."""
    ids: dict[str, None] = {}
    for examples in record["report"].get("examples", {}).values():
        for example in examples:
            ids[example["document_id"]] = None
    return list(ids)


def read_titles(searcher: Searcher, document_ids: Collection[str]) -> dict[str, str]:
    """Return the titles of those documents that are live, by document id."""
    documents = searcher.documents(list(document_ids))
    return {document_id: document.title for document_id, document in documents.items()}


def render_page(row: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return a drift report as one HTML page, which follows the reader's light or dark mode.

    Args:
        row: Row of the ledger with the keys `retriever`, `recorded` (seconds since 1970),
            `first_event`, `last_event`, and `report`. The last one holds the report and the
            decision, as `DriftCheck.as_dict` returns them.
        titles: Titles of live documents by id.
    """
    report = row["report"]["report"]
    measures = report["measures"]
    names = list(dict.fromkeys(measure["name"] for measure in measures))
    sections = []
    for name in names:
        results = [measure for measure in measures if measure["name"] == name]
        examples = report.get("examples", {}).get(name, ())
        sections.append(_measure_section(name, results, examples, titles))

    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Drift report</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Drift report</h1>
{_introduction(row, report)}
{_decision(row["report"]["decision"])}
{_overview(report)}
{"".join(sections)}
{_not_measured(report.get("unmeasured", ()))}
</main>
</body>
</html>
"""


def _introduction(row: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Return a paragraph: retriever, time, documents that were measured, and chance of an alarm.

    Args:
        row: Row of the report in the ledger; see `render_page`.
        report: The report itself.
    """
    moment = datetime.fromtimestamp(row["recorded"], UTC)
    window = ""
    if report["batches"] > 1:
        window = (
            f", and {report['window_documents']:,} documents of the last {report['batches']} "
            "batches together"
        )
    compared = ""
    if report.get("reference"):
        compared = f" Compared with: {report['reference']}."
    incdsi = ""
    if report.get("incdsi"):
        incdsi = f" {report['incdsi']}"
    chance = format_percent(report["alpha"])
    text = (
        f"Retriever {row['retriever']}, {moment:%Y-%m-%d %H:%M} UTC. "
        f"{report['documents']:,} new and changed documents (events {row['first_event']} to "
        f"{row['last_event']}){window}. Chance of any false alarm: at most {chance}."
    )
    return f'<p class="muted">{escape(text + compared + incdsi)}</p>'


def _decision(decision: Mapping[str, Any]) -> str:
    """Return the section that states the next step, its meaning and its reasons.

    The step that the measures called for is named as well if it may not start now.
    """
    action = decision["action"]
    title = f"Decision: {action}"
    if decision["wanted"] != action:
        title += f" (called for: {decision['wanted']})"
    if decision.get("dry_run"):
        title += ", a dry run"
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in decision["reasons"])
    css_class = action.replace(" ", "-")
    return (
        f'<section class="decision {escape(css_class)}" aria-labelledby="decision">'
        f'<h2 id="decision">{escape(title)}</h2>'
        f"<p>{escape(DECISION_MEANINGS.get(action, ''))}</p><ul>{reasons}</ul></section>"
    )


def _overview(report: Mapping[str, Any]) -> str:
    """Return a table with one row per result, each linked to the section of its measure."""
    rows = []
    for measure in report["measures"]:
        link = f'<a href="#{escape(measure["name"])}">{escape(measure["name"])}</a>'
        cells = "".join(_result_cells(measure))
        rows.append(f'<tr><th scope="row">{link}</th>{cells}</tr>')
    return (
        f"<h2>All measures</h2>{_scroll_start('All measures')}<table>"
        "<caption>Each value with the threshold beyond which it shows drift</caption>"
        '<thead><tr><th scope="col">Measure</th><th scope="col">Of</th>'
        '<th scope="col" class="number">Value</th><th scope="col" class="number">Threshold</th>'
        '<th scope="col" class="number">p</th><th scope="col">Result</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _result_cells(measure: Mapping[str, Any]) -> list[str]:
    """Return the cells of a measure after its name: scope, value, threshold, p-value and result."""
    css_class, outcome = _outcome(measure)
    p = "–"
    if "p" in measure["detail"]:
        p = _format_p(measure["detail"]["p"])
    return [
        f"<td>{SCOPE_TEXTS[measure['scope']]}</td>",
        f'<td class="number">{measure["value"]:.4f}</td>',
        f'<td class="number">{_sign(measure)} {measure["threshold"]:.4f}</td>',
        f'<td class="number">{p}</td>',
        f'<td class="{css_class}">{outcome}</td>',
    ]


def _outcome(measure: Mapping[str, Any]) -> tuple[str, str]:
    """Return the CSS class of a result, and its words, such as "beyond its threshold"."""
    if measure["tripped"]:
        return "beyond", "beyond its threshold"
    if measure["suspected"]:
        return "beyond", "suspected: beyond the threshold if only harm is tested"
    return "within", "within its threshold"


def _sign(measure: Mapping[str, Any]) -> str:
    return "&gt;" if measure["tail"] == "high" else "&lt;"


def _format_p(p: float) -> str:
    return "&lt; 0.0001" if p < 0.0001 else f"{p:.4f}"


def _measure_section(
    name: str,
    results: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    titles: Mapping[str, str],
) -> str:
    """Return the section of a measure.

    Args:
        name: Name of the measure.
        results: Results of the measure, for the newest batch and perhaps for the window.
        examples: Documents that illustrate the measure.
        titles: Titles of live documents by id.
    """
    description = DESCRIPTIONS.get(name, UNKNOWN_MEASURE)
    question = description.question or name
    parts = [
        f'<section class="measure" aria-labelledby="{escape(name)}">',
        f'<h2 id="{escape(name)}">{escape(question)} <code>{escape(name)}</code></h2>',
        f"<p>{escape(description.meaning)}</p>",
    ]
    for measure in results:
        parts.append(_result(measure))
    if examples:
        parts.append(_examples_table(name, examples, titles))
    parts.append("</section>")
    return "".join(parts)


def _result(measure: Mapping[str, Any]) -> str:
    """Return one result of a measure in words, with a picture and further numbers.

    Args:
        measure: The result for the newest batch, or for the last batches together.
    """
    css_class, outcome = _outcome(measure)
    value = f"{measure['value']:.4f}"
    side = "above" if measure["tail"] == "high" else "below"
    sentence = (
        f"<h3>{SCOPE_TEXTS[measure['scope']].capitalize()}</h3>"
        f'<p><strong>{value}</strong> is <span class="{css_class}">{outcome}</span>. '
        f"Values {side} {measure['threshold']:.4f} show drift"
    )
    if "p" in measure["detail"]:
        sentence += f"; p = {_format_p(measure['detail']['p'])}"
    sentence += f".</p>{_scale(measure)}"

    facts = []
    for key, number in measure["detail"].items():
        # The sentence above states the p-value, and the threshold follows from the level. Both are
        # left out.
        if key in ("p", "level"):
            continue
        text = f"{number:.4f}" if isinstance(number, float) else str(number)
        facts.append(f"{key.replace('_', ' ')} {text}")
    if facts:
        sentence += f'<p class="muted">{escape(", ".join(facts))}</p>'
    return sentence


def _scale(measure: Mapping[str, Any]) -> str:
    """Return a picture of the value beside the values without drift and the threshold.

    It is empty for a measure without a null distribution. `measure["null"]` holds quantiles of the
    values that the measure has without drift.
    """
    null = measure["null"]
    if not null:
        return ""
    points = [measure["value"], measure["threshold"], null["0.01"], null["0.99"]]
    low = min(points)
    extent = max(points) - low
    if extent == 0:
        # All points are equal. Any other extent avoids a division by zero.
        extent = 1.0

    def position(number: float) -> float:
        """Return the horizontal place of a number in the picture."""
        share = (number - low) / extent
        return round(SCALE_MARGIN + share * (SCALE_WIDTH - 2 * SCALE_MARGIN), 1)

    start = position(null["0.01"])
    width = round(position(null["0.99"]) - start, 1)
    median = position(null["0.5"])
    limit = position(measure["threshold"])
    label = (
        f"Value {measure['value']:.4f}, threshold {measure['threshold']:.4f}; without drift, 98 % "
        f"of the values lie between {null['0.01']:.4f} and {null['0.99']:.4f}"
    )
    return (
        f'<svg viewBox="0 0 {SCALE_WIDTH} {SCALE_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<line class="axis" x1="0" x2="{SCALE_WIDTH}" y1="20" y2="20"/>'
        f'<rect class="null" x="{start}" y="14" width="{width}" height="12" rx="2"/>'
        f'<line class="median" x1="{median}" x2="{median}" y1="14" y2="26"/>'
        f'<line class="limit" x1="{limit}" x2="{limit}" y1="6" y2="34"/>'
        f'<circle class="value" cx="{position(measure["value"])}" cy="20" r="6"/>'
        '</svg><p class="muted key">dot: value; dashed line: threshold; bar: 98 % of the values '
        "without drift</p>"
    )


def _examples_table(
    name: str, examples: Sequence[Mapping[str, Any]], titles: Mapping[str, str]
) -> str:
    """Return a table of documents. Columns without any cell are left out."""
    description = DESCRIPTIONS.get(name, UNKNOWN_MEASURE)
    title = description.examples
    has_values = any(example["value"] is not None for example in examples)
    has_notes = any(example["note"] for example in examples)
    headings = '<th scope="col">Document</th><th scope="col">Title</th>'
    if has_values:
        headings += f'<th scope="col" class="number">{escape(description.example_value)}</th>'
    if has_notes:
        headings += '<th scope="col">Note</th>'

    rows = []
    for example in examples:
        document_id = example["document_id"]
        cells = f'<th scope="row" class="id">{escape(document_id)}</th>'
        cells += f"<td>{escape(titles.get(document_id, NO_TITLE))}</td>"
        if has_values:
            cells += f'<td class="number">{example["value"]:.3f}</td>'
        if has_notes:
            cells += f"<td>{escape(example['note'])}</td>"
        rows.append(f"<tr>{cells}</tr>")
    return (
        f"{_scroll_start(title)}<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{headings}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _scroll_start(label: str) -> str:
    """Return the start of an area that scrolls sideways, also by the keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'


def _not_measured(unmeasured: Sequence[Mapping[str, Any]]) -> str:
    """Return the list of measures that have no result, each with the reason."""
    if not unmeasured:
        return ""
    items = []
    for measure in unmeasured:
        text = f"{measure['name']} ({SCOPE_TEXTS[measure['scope']]}): {measure['why']}"
        items.append(f"<li>{escape(text)}</li>")
    return f"<h2>Not measured</h2><ul>{''.join(items)}</ul>"
