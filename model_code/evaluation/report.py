"""Present a comparison: a summary sentence, tables as data frames of texts, and an HTML page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from model_code.evaluation.comparison import QUERIES_AND_SEEDS, is_variant
from model_code.evaluation.scores import BM25_KNOWN, WITH_KNOWN, WITHOUT_KNOWN

# Metrics that follow the main metric in tables, if they were measured.
HEADLINE_METRICS = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")
GROUP_TITLES = {
    WITHOUT_KNOWN: "Queries whose relevant documents have no known query",
    WITH_KNOWN: "Queries with a relevant document that has known queries",
}
UNJUDGED = "this corpus has no judged dev or test queries, so no system can be compared"
RELEVANT_MARK = "✓"
TRAININGS_TEXT = {1: "one training", 2: "two trainings"}


def summary_sentence(comparison: Mapping[str, Any]) -> str:
    """Return which system is best, by how much, and on which queries.

    The first sentences state the limits of the comparison: missing judgements, and systems that
    were left out.

    Args:
        comparison: Content of `comparison.json`.
    """
    limits = []
    if not comparison["queries"]:
        limits.append(UNJUDGED)
    # Several systems may have been left out for the same reason, which is stated once.
    limits.extend(dict.fromkeys(comparison.get("left_out", {}).values()))
    sentences = [f"{limit[0].upper()}{limit[1:]}." for limit in limits]

    systems = comparison["systems"]
    if not systems:
        return " ".join(sentences)

    main = comparison["main_metric"]
    values = {name: metrics[main]["value"] for name, metrics in systems.items()}
    best_first = sorted(systems, key=lambda name: -values[name])
    best = best_first[0]
    lead = ""
    if len(best_first) > 1:
        second = best_first[1]
        lead = f", {values[best] - values[second]:.3f} above {second}"
    cell = systems[best][main]
    sentences.append(
        f"{best} is the best of {len(systems)} systems: {main} {format_interval(cell)} "
        f"(over {describe_interval(cell)}){lead}, on {comparison['documents']:,} documents and "
        f"{comparison['queries']:,} judged {comparison['split']} queries."
    )

    if comparison.get("own_documents"):
        sentences.append(
            f"{comparison['own_documents']:,} of the queries are documents of the corpus, and "
            "their own document is left out of their rankings."
        )
    sentences.extend(_groups_below_known(comparison, best))
    return " ".join(sentences)


def _groups_below_known(comparison: Mapping[str, Any], best: str) -> Iterator[str]:
    """Yield a sentence for each group of queries on which `bm25_known` beats the best system.

    `bm25_known` is BM25 that adds known queries to their documents. On such a group, looking up
    known queries is better than the best system.
    """
    main = comparison["main_metric"]
    for name, group in comparison.get("groups", {}).items():
        systems = group["systems"]
        if BM25_KNOWN not in systems or best not in systems:
            continue
        known_value = systems[BM25_KNOWN][main]["value"]
        best_value = systems[best][main]["value"]
        if known_value > best_value:
            yield (
                f"On the queries {name!r}, {BM25_KNOWN} is above it: {known_value:.3f} against "
                f"{best_value:.3f}."
            )


def headline_metrics(comparison: Mapping[str, Any]) -> list[str]:
    """Return the main metric, then the measured metrics of `HEADLINE_METRICS`."""
    measured = next(iter(comparison["systems"].values()), {})
    others = [name for name in HEADLINE_METRICS if name in measured]
    return list(dict.fromkeys([comparison["main_metric"], *others]))


def format_interval(cell: Mapping[str, float], key: str = "value", sign: str = "") -> str:
    """Format a number with its interval.

    >>> format_interval({"value": 0.5, "low": 0.4321, "high": 0.6})
    '0.500 [0.432, 0.600]'
    """
    form = f"{sign}.3f"
    value = format(cell[key], form)
    low = format(cell["low"], form)
    high = format(cell["high"], form)
    return f"{value} [{low}, {high}]"


def describe_interval(cell: Mapping[str, Any]) -> str:
    """Describe the sources of variance that an interval covers.

    An interval over the queries of one or two trainings does not cover how much another training
    would differ. So the description names the number of trainings.

    >>> describe_interval({"over": "queries", "trainings": 0})
    'queries'
    >>> describe_interval({"over": "queries", "trainings": 1})
    'queries, one training'
    >>> describe_interval({"over": "queries and seeds", "trainings": 3})
    'queries and 3 trainings'
    """
    trainings = cell["trainings"]
    if cell["over"] == QUERIES_AND_SEEDS:
        return f"queries and {trainings} trainings"
    if not trainings:
        return "queries"
    trainings_text = TRAININGS_TEXT.get(trainings, f"{trainings} trainings")
    return f"queries, {trainings_text}"


def systems_table(
    comparison: Mapping[str, Any], group: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Return a table with a row per system and a column per metric.

    Variants come last. The first two metrics have intervals.

    Args:
        comparison: Content of `comparison.json`.
        group: A group of queries of the comparison. None: all queries.
    """
    metrics = headline_metrics(comparison)
    systems = (group or comparison)["systems"]
    rows = []
    for name in sorted(systems, key=is_variant):
        cells = [systems[name][metric] for metric in metrics]
        row = [name]
        row.extend(format_interval(cell) for cell in cells[:2])
        row.extend(f"{cell['value']:.3f}" for cell in cells[2:])
        row.append(describe_interval(cells[0]))
        rows.append(row)

    interval = f"[{100 * comparison['confidence']:g} % interval]"
    with_interval = [f"{metric} {interval}" for metric in metrics[:2]]
    columns = ["system", *with_interval, *metrics[2:], "interval over"]
    return pd.DataFrame(rows, columns=columns)


def differences_table(group: Mapping[str, Any], metric: str) -> pd.DataFrame:
    """Return the paired differences on one metric, with interval and Holm-corrected p."""
    rows = []
    for row in group["differences"]:
        if row["metric"] == metric:
            rows.append(
                [
                    f"{row['system']} − {row['reference']}",
                    format_interval(row, "difference", "+"),
                    format_p_value(row["p_holm"]),
                    describe_interval(row),
                ]
            )
    return pd.DataFrame(rows, columns=["difference", metric, "p (Holm)", "interval over"])


def examples_table(comparison: Mapping[str, Any], outcome: str) -> pd.DataFrame:
    """Return the queries on which the best system differs most from the next best system.

    A row has the query and the first documents of both systems.

    Args:
        comparison: Content of `comparison.json`.
        outcome: "won" for queries on which the best system is better, "lost" for the others.
    """
    examples = comparison["examples"]
    names = [examples["system"], examples["reference"]]
    rows = []
    for example in examples[outcome]:
        row = [example["query"], f"{example['difference']:+.3f}"]
        row.extend(_ranking_text(example["first"][name]) for name in names)
        rows.append(row)
    return pd.DataFrame(rows, columns=["query", comparison["main_metric"], *names])


def _ranking_text(documents: Sequence[tuple[str, bool]]) -> str:
    """Return the ids of documents as one text, with a mark before each relevant one."""
    marked = []
    for name, is_relevant in documents:
        if is_relevant:
            marked.append(f"{RELEVANT_MARK} {name}")
        else:
            marked.append(name)
    return "; ".join(marked)


def format_p_value(p: float) -> str:
    """Format a p-value with three decimals.

    >>> format_p_value(0.00012), format_p_value(0.0321), format_p_value(1.0)
    ('< 0.001', '0.032', '1.000')
    """
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}"


def report_tables(comparison: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the tables of the report by title. Empty tables are left out."""
    main = comparison["main_metric"]
    tables = {
        "Results": systems_table(comparison),
        f"Paired differences in {main}": differences_table(comparison, main),
    }
    for name, group in comparison["groups"].items():
        tables[f"{GROUP_TITLES[name]}: {group['queries']:,}"] = systems_table(comparison, group)
        differences_title = f"{GROUP_TITLES[name]}: paired differences in {main}"
        tables[differences_title] = differences_table(group, main)

    examples = comparison["examples"]
    if examples:
        for outcome in ("won", "lost"):
            title = (
                f"Queries that {examples['system']} {outcome} against "
                f"{examples['reference']} by most in {main}"
            )
            tables[title] = examples_table(comparison, outcome)
    return {title: table for title, table in tables.items() if len(table)}


PAGE_STYLE = """
:root { color-scheme: light dark }
body { margin: 2rem auto; padding: 0 1rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif }
table { border-collapse: collapse; display: block; overflow-x: auto }
table { font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #8884; text-align: left }
img { max-width: 100% }
"""


def render_page(
    title: str, sentences: Sequence[str], picture: bytes, tables: Mapping[str, pd.DataFrame]
) -> str:
    """Return the report as one HTML file without scripts or external addresses.

    The page follows the light or dark mode of the reader's system.

    Args:
        title: Title and heading of the page.
        sentences: Sentences, each of which becomes a paragraph.
        picture: PNG that shows all systems.
        tables: Tables by heading.
    """
    paragraphs = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    encoded = base64.b64encode(picture).decode()
    sections = []
    # By default, pandas would shorten long texts in cells.
    with pd.option_context("display.max_colwidth", None):
        for name, table in tables.items():
            html = table.to_html(index=False, border=0)
            sections.append(f"<h2>{escape(name)}</h2>\n{html}")
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{PAGE_STYLE}</style>
<h1>{escape(title)}</h1>
{paragraphs}
<img src="data:image/png;base64,{encoded}" alt="All systems, with intervals over queries">
{"".join(sections)}
</html>
"""
