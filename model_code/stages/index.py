"""Stage `index`, once per retriever: index the passages for a trained retriever, as its kind does."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, leave_out, left_out
from model_code.files import add_facts
from model_code.retrieval.kinds import PRECISION, trained_kind


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]` and what training left in `inputs["trained"]`, write `index/`, return
    its counts.

    The index says in which precision it was encoded, so that queries and later documents are
    encoded alike.
    """
    if reason := left_out(context.inputs["trained"]):
        leave_out(context.output / "index", reason)  # the folder that DVC expects
        return leave_out(context.output, reason)
    report = trained_kind(context.settings["retriever"].kind).index(context)
    add_facts(context.output / "index", {PRECISION: context.settings["encoder"].precision})
    return report
