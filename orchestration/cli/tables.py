"""Results for people: aligned tables, the comparison of systems, search hits with their tokens."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_code.retriever import Hit, TokenMatch

SHOWN = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")  # after the main metric, where they are measured
JUDGES = {"qrels": "the corpus's own qrels", "pseudo-queries": "held-out pseudo-queries, as it has no qrels"}
SHOWN_TOKENS = 12  # of those that matched, the heaviest


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their columns' names, aligned.

    >>> print(table_text(["system", "hit@1"], [["bm25", "0.5"], ["zero_shot", "0.625"]]))
    system     hit@1
    bm25       0.5
    zero_shot  0.625
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column), no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    stream = io.StringIO()
    Console(file=stream, width=10_000, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def shown_metrics(comparison: Mapping[str, Any]) -> list[str]:
    """The metrics of the table: the main one, then the usual ones that were measured."""
    measured = next(iter(comparison["systems"].values()))
    return list(dict.fromkeys([comparison["main_metric"], *(metric for metric in SHOWN if metric in measured)]))


def results_table(comparison: Mapping[str, Any]) -> str:
    """The test results as aligned text, with the interval of the first two metrics and who judged."""
    from model_code.evaluation.comparison import caveats, is_variant

    systems, shown = comparison["systems"], shown_metrics(comparison)
    interval = f"[{100 * comparison['confidence']:g} % interval]"
    header = ["system", *(f"{metric} {interval}" for metric in shown[:2]), *shown[2:]]
    ordered = sorted(systems, key=is_variant)  # variants after all systems, each kept in its order
    rows = [[_name(system, comparison), *_cells(systems[system], shown)] for system in ordered]
    queries = f"{comparison['queries']:,} {comparison['split']} queries"
    table = f"{table_text(header, rows)}\n({queries}, judged by {JUDGES[comparison['source']]})"
    return "\n".join([*caveats(comparison), table])


def differences_table(comparison: Mapping[str, Any], metric: str) -> str:
    """Paired differences on one metric with interval and Holm-adjusted p."""
    return "\n".join(
        f"{row['system']} - {row['reference']}: {row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] "
        f"p (Holm) {row['p_holm']:.4f}"
        for row in comparison["differences"]
        if row["metric"] == metric
    )


def _name(system: str, comparison: Mapping[str, Any]) -> str:
    seeds = comparison.get("seeds", {}).get(system, 1)
    return system if seeds == 1 else f"{system} ({seeds} seeds)"


def _cells(metrics: Mapping[str, Mapping[str, float]], shown: list[str]) -> list[str]:
    exact = [f"{metrics[m]['value']:.3f} [{metrics[m]['low']:.3f}, {metrics[m]['high']:.3f}]" for m in shown[:2]]
    return exact + [f"{metrics[metric]['value']:.3f}" for metric in shown[2:]]


def hits_text(hits: Sequence[Hit]) -> str:
    """Rank, score, id, path in the hierarchy, title and snippet of each hit, and what its score is made of if known."""
    return "\n".join(map(_hit_text, hits)) or "no documents found"


def tokens_text(tokens: Sequence[TokenMatch]) -> str:
    """Tokens with their weights; + marks what the query's encoder added.

    >>> from model_code.retriever import TokenMatch
    >>> tokens_text([TokenMatch("split", 1.25), TokenMatch("divide", 0.5, expanded=True)])
    'split 1.25  +divide 0.50'
    """
    if not tokens:
        return "no token matched"
    shown = [f"{'+' if token.expanded else ''}{token.token} {token.weight:.2f}" for token in tokens[:SHOWN_TOKENS]]
    others = len(tokens) - len(shown)
    return "  ".join(shown) + (f"  and {others} more" if others else "")


def _hit_text(hit: Hit) -> str:
    path = " › ".join(hit.topics) or "/".join(str(node) for node in hit.path)
    lines = [f"{hit.rank:3}  {hit.score:.3f}  {hit.title}", f"{hit.document_id}  [{path}]", hit.snippet]
    return f"\n{' ' * 12}".join(lines if hit.tokens is None else [*lines, tokens_text(hit.tokens)])
