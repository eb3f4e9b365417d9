"""Results for people: aligned tables, search hits with their tokens."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_code.retriever import Hit, TokenMatch

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
