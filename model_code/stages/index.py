"""Stage `index`, once per retriever: index the passages for a trained retriever of any kind."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.stages.stage import RETRIEVER_CODE, Stage, artifact_paths

STAGE = Stage(
    name="index",
    description="Every passage encoded by the trained encoder, in an index that knows its "
    "encoder's fingerprint.",
    groups=("encoder", "index", "known_queries.use", "retrievers.{retriever}", "training"),
    inputs=artifact_paths(
        "corpus",
        trained="artifacts/train/{retriever}",
        # This baseline holds the weights with which queries that a document is known to answer
        # count as its words. All word searches use these weights.
        bm25_known="artifacts/baselines/bm25_known/build/encoder",
    ),
    output="artifacts/index/{retriever}",
    code=RETRIEVER_CODE,
    expand_by="retrievers",
)


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]` and the trained retriever in `inputs["trained"]`, and write `index/`.

    The index records the precision of its encodings, so that queries and later documents are
    encoded in the same way.

    Returns:
        Counts of the index.
    """
    from model_code.files import add_to_manifest
    from model_code.retrieval.kinds import PRECISION, trained_kind

    reason = left_out_reason(context.inputs["trained"])
    if reason:
        # The retriever was not trained. DVC expects the folder `index/` of every retriever, so it
        # is written with the reason.
        mark_left_out(context.output / "index", reason)
        return mark_left_out(context.output, reason)

    report = trained_kind(context.settings["retriever"].kind).index(context)
    precision = context.settings["encoder"].precision
    add_to_manifest(context.output / "index", {PRECISION: precision})
    return report


def check(context: StageContext) -> None:
    """Require an index of the retriever's kind over the passages of the corpus."""
    from model_code.checks.indexes import check_index_folder

    check_index_folder(context.output / "index", context.settings["retriever"].kind, context)
