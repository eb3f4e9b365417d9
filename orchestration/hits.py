"""Search hits as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from model_code.live.searcher import Hit


def hits_text(hits: Sequence[Hit]) -> str:
    """Rank, score, id, path in the hierarchy, title and snippet of each hit."""
    if not hits:
        return "no documents found"
    return "\n".join(_hit_text(hit) for hit in hits)


def _hit_text(hit: Hit) -> str:
    path = "/".join(str(node) for node in hit.path)
    lines = (f"{hit.rank:3}  {hit.score:.3f}  {hit.title}", f"{hit.document_id}  [{path}]", hit.snippet)
    return f"\n{' ' * 12}".join(lines)
