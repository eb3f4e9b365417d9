"""Stage `index`, once per retriever: index the initial passages for a trained retriever, as its kind does."""

from __future__ import annotations

from typing import Any

from model_code.retrievers.kinds import module
from model_code.stages.context import StageContext


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]` and what training left in `inputs["trained"]`, write `index/`, return its counts."""
    return module(context.settings["retriever"].kind).index(context)
