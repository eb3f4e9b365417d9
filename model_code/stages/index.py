"""Stage `index`, once per retriever: index the passages for a trained retriever, as its kind does."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.files import add_to_manifest
from model_code.retrieval.kinds import PRECISION, trained_kind


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]` and what training left in `inputs["trained"]`, write `index/`, return
    its counts.

    The index says in which precision it was encoded, so that queries and later documents are
    encoded alike.
    """
    if reason := left_out_reason(context.inputs["trained"]):
        mark_left_out(context.output / "index", reason)  # the folder that DVC expects
        return mark_left_out(context.output, reason)
    report = trained_kind(context.settings["retriever"].kind).index(context)
    add_to_manifest(context.output / "index", {PRECISION: context.settings["encoder"].precision})
    return report
