"""Stage `evaluate`, once per retriever: search the judged queries and score the rankings."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.stages.stage import RETRIEVER_CODE, Stage, artifact_paths, code_paths

STAGE = Stage(
    name="evaluate",
    description="Ranking of every dev, gate and test query by "
    "this retriever, with per-query scores.",
    groups=("encoder", "evaluation"),
    inputs=artifact_paths(
        "corpus",
        "baselines",
        trained="artifacts/train/{retriever}",
        index="artifacts/index/{retriever}/index",
    ),
    output="artifacts/evaluate/{retriever}",
    code=(*RETRIEVER_CODE, *code_paths("stages/evaluation_set.py")),
    expand_by="retrievers",
)


def run(context: StageContext) -> dict[str, Any]:
    """Evaluate the retriever in `inputs["trained"]` and `inputs["index"]`.

    The stage writes the evaluation folder and, below `variants/`, one folder per variant. One
    variant is the fusion of the retriever's run with BM25's run from `inputs["baselines"]`.

    Returns:
        The mean metrics of each split.
    """
    reason = left_out_reason(context.inputs["trained"])
    if reason:
        return mark_left_out(context.output, reason)

    # These modules import torch, which takes seconds. A retriever that was left out needs none.
    from model_code.retrieval.kinds import open_retriever
    from model_code.stages.evaluation_set import EvaluationSet

    evaluation_set = EvaluationSet.load(context)
    retriever = open_retriever(
        context.inputs["trained"] / "encoder",
        context.inputs["index"],
        settings=context.settings["encoder"],
    )
    stripped = evaluation_set.strip_query_lines(retriever)
    bm25_runs = evaluation_set.read_runs(context.inputs["baselines"] / "bm25")
    return evaluation_set.evaluate_retriever(str(context.name), stripped, bm25_runs, context.output)


def check(context: StageContext) -> None:
    """Require the evaluation folder of the retriever, and the folders of its variants."""
    from model_code.checks.evaluations import EvaluationChecker

    checker = EvaluationChecker.load(context)
    checker.check(str(context.name), context.output, checker.retriever_variants)
