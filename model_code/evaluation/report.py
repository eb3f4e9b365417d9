"""The comparison for people: its first sentence, its tables as data frames of texts, and one page
without a network.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from model_code.evaluation.comparison import is_variant

# after the main metric, where they are measured
HEADLINE = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")
GROUPS = {
    "unseen": "Queries none of whose relevant documents answers a query of another split",
    "seen": "Queries with a relevant document that also answers a query of another split",
}
UNJUDGED = "nobody has judged dev or test queries of this corpus, so that no system can be compared"
MARK = "✓"  # before a relevant document


def summary_sentence(comparison: Mapping[str, Any]) -> str:
    """Which system is best, by how much, and on what: the report's first sentence; before it only
    what limits it.
    """
    main, systems = comparison["main_metric"], comparison["systems"]
    limits = [
        *([] if comparison["queries"] else [UNJUDGED]),
        *dict.fromkeys(comparison.get("left_out", {}).values()),
    ]
    before = "".join(f"{limit[0].upper()}{limit[1:]}. " for limit in limits)
    if not systems:
        return before.strip()
    values = {name: metrics[main]["value"] for name, metrics in systems.items()}
    best, *others = sorted(systems, key=lambda name: -values[name])
    ahead = f", {values[best] - values[others[0]]:.3f} above {others[0]}" if others else ""
    return before + (
        f"{best} is the best of {len(systems)} systems: {main} {format_interval(systems[best][main])}{ahead}, "
        f"on {comparison['documents']:,} documents and {comparison['queries']:,} judged {comparison['split']} queries."
    )


def headline_metrics(comparison: Mapping[str, Any]) -> list[str]:
    """The main metric and those of `HEADLINE` that were measured."""
    measured = next(iter(comparison["systems"].values()), {})
    return list(
        dict.fromkeys([comparison["main_metric"], *(name for name in HEADLINE if name in measured)])
    )


def format_interval(cell: Mapping[str, float], key: str = "value", sign: str = "") -> str:
    """A number with its interval.

    >>> format_interval({"value": 0.5, "low": 0.4321, "high": 0.6})
    '0.500 [0.432, 0.600]'
    """
    return f"{cell[key]:{sign}.3f} [{cell['low']:{sign}.3f}, {cell['high']:{sign}.3f}]"


def systems_table(
    comparison: Mapping[str, Any], part: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Systems by metrics, variants last; the first two metrics with their intervals. part: a group
    of the queries.
    """
    shown, seeds = headline_metrics(comparison), comparison.get("seeds", {})
    interval = f"[{100 * comparison['confidence']:g} % interval]"
    systems = (part or comparison)["systems"]
    rows = []
    for name in sorted(systems, key=is_variant):
        cells = [systems[name][metric] for metric in shown]
        named = name if seeds.get(name, 1) == 1 else f"{name} ({seeds[name]} seeds)"
        rows.append(
            [
                named,
                *map(format_interval, cells[:2]),
                *(f"{cell['value']:.3f}" for cell in cells[2:]),
            ]
        )
    return pd.DataFrame(
        rows, columns=["system", *(f"{metric} {interval}" for metric in shown[:2]), *shown[2:]]
    )


def differences_table(part: Mapping[str, Any], metric: str) -> pd.DataFrame:
    """Paired differences on one metric, with interval and Holm-corrected p."""
    rows = [
        [
            f"{row['system']} − {row['reference']}",
            format_interval(row, "difference", "+"),
            format_p_value(row["p_holm"]),
        ]
        for row in part["differences"]
        if row["metric"] == metric
    ]
    return pd.DataFrame(rows, columns=["difference", metric, "p (Holm)"])


def examples_table(comparison: Mapping[str, Any], outcome: str) -> pd.DataFrame:
    """The queries that the best system `won` or `lost` against the next best, with what both found
    first.
    """
    examples = comparison["examples"]
    names = [examples["system"], examples["reference"]]

    def ranking(documents: Sequence[tuple[str, bool]]) -> str:
        return "; ".join(f"{MARK} {name}" if relevant else name for name, relevant in documents)

    rows = [
        [
            row["query"],
            f"{row['difference']:+.3f}",
            *(ranking(row["first"][name]) for name in names),
        ]
        for row in examples[outcome]
    ]
    return pd.DataFrame(rows, columns=["query", comparison["main_metric"], *names])


def format_p_value(p: float) -> str:
    """A p-value in three digits.

    >>> format_p_value(0.00012), format_p_value(0.0321), format_p_value(1.0)
    ('< 0.001', '0.032', '1.000')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def report_tables(comparison: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of the report under their titles, but for those without a row."""
    main, examples = comparison["main_metric"], comparison["examples"]
    parts = {
        "Results": systems_table(comparison),
        f"Paired differences in {main}": differences_table(comparison, main),
    }
    for name, part in comparison["groups"].items():
        parts[f"{GROUPS[name]}: {part['queries']:,}"] = systems_table(comparison, part)
        parts[f"The same: paired differences in {main}"] = differences_table(part, main)
    for outcome in ("won", "lost") if examples else ():
        title = f"Queries that {examples['system']} {outcome} against {examples['reference']} by most in {main}"
        parts[title] = examples_table(comparison, outcome)
    return {title: table for title, table in parts.items() if len(table)}


STYLE = """
:root { color-scheme: light dark }
body { margin: 2rem auto; padding: 0 1rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #8884; text-align: left }
img { max-width: 100% }
"""


def render_page(
    title: str, sentences: Sequence[str], picture: bytes, shown: Mapping[str, pd.DataFrame]
) -> str:
    """One HTML file: no scripts, no addresses outside of it, light or dark as the reader's system
    is.
    """
    paragraphs = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    drawn = base64.b64encode(picture).decode()
    with pd.option_context("display.max_colwidth", None):
        parts = [
            f"<h2>{escape(name)}</h2>\n{table.to_html(index=False, border=0)}"
            for name, table in shown.items()
        ]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<h1>{escape(title)}</h1>
{paragraphs}
<img src="data:image/png;base64,{drawn}" alt="All systems, with intervals over queries">
{"".join(parts)}
</html>
"""
