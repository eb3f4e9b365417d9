"""The report's tables, free of markup: what stands in which cell. `report` and `html_page` write them down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADLINE = ("hit@1", "MRR@10", "R@100")  # beside the main metric, where measured
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


def spoken_p(p: float) -> str:
    """A p-value in three digits.

    >>> spoken_p(0.00012), spoken_p(0.0321), spoken_p(1.0)
    ('< 0.001', '0.032', '1.000')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _estimate(cell: Mapping[str, float], best: float) -> Cell:
    return Cell(f"{cell['value']:.3f}", f"[{cell['low']:.3f}, {cell['high']:.3f}]", best=cell["value"] == best)
