"""Search hits as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_code.live.searcher import Hit
    from model_code.retriever import TokenMatch

SHOWN_TOKENS = 12  # of those that matched, the heaviest


def hits_text(hits: Sequence[Hit], matches: Sequence[Sequence[TokenMatch]] | None = None) -> str:
    """Rank, score, id, path in the hierarchy, title and snippet of each hit, and its matching tokens if given."""
    if not hits:
        return "no documents found"
    lines = [tokens_text(tokens) for tokens in matches] if matches is not None else [None] * len(hits)
    return "\n".join(_hit_text(hit, tokens) for hit, tokens in zip(hits, lines, strict=True))


def rows_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same of the rows that `freshet search --json` prints, whoever found them."""
    hits: list[Any] = [SimpleNamespace(**row) for row in rows]
    if not any("tokens" in row for row in rows):
        return hits_text(hits)
    return hits_text(hits, [[SimpleNamespace(**token) for token in row["tokens"]] for row in rows])  # type: ignore[misc]


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


def _hit_text(hit: Hit, tokens: str | None) -> str:
    path = "/".join(str(node) for node in hit.path)
    lines = [f"{hit.rank:3}  {hit.score:.3f}  {hit.title}", f"{hit.document_id}  [{path}]", hit.snippet]
    return f"\n{' ' * 12}".join(lines if tokens is None else [*lines, tokens])
