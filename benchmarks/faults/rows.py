"""One row of what the fault benchmark found."""

from __future__ import annotations

from typing import Any


def row(what: str, ours: int, peer: int, goal: str, met: bool) -> dict[str, Any]:
    """peer: the best there can be."""
    return {"what": what, "ours": ours, "peer": peer, "ratio": ours / peer if peer else ours, "goal": goal, "met": met}
