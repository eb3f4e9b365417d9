"""Stage `fuse`, once per fusion: combine retrievers with learned weights, and evaluate the fusion.

A fusion is a retriever whose score is a weighted sum of its components' normalised scores. The
output is an evaluation folder like the output of `evaluate`, with the fusion itself in `build/`.
Each folder below `variants/` holds the evaluation of the fusion without one component or without
late interaction, with weights that are learned again. It shows what the missing component
contributes. A variant has at least two components.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.stages.stage import RETRIEVER_CODE, Stage, artifact_paths, code_paths

if TYPE_CHECKING:
    from model_code.retriever_settings import FusionSettings

STAGE = Stage(
    name="fuse",
    description="Several retrievers as one: weights learned on dev, and its ranking of every "
    "dev, gate and test query.",
    groups=("encoder", "evaluation", "fusions.{retriever}", "known_queries.use"),
    inputs=artifact_paths(
        "corpus", "hierarchy", "baselines", trained="artifacts/train", indexes="artifacts/index"
    ),
    output="artifacts/evaluate/{retriever}",
    code=(*RETRIEVER_CODE, *code_paths("stages/evaluation_set.py", "stages/fusion.py")),
    expand_by="fusions",
)


def run(context: StageContext) -> dict[str, Any]:
    """Fuse and evaluate the components that `settings["fusion"].of` names.

    If known queries are used, `bm25_known` replaces `bm25`. A component that is a baseline is read
    from `inputs["baselines"]`. A trained retriever is read from `inputs["trained"]` and
    `inputs["indexes"]`.

    Returns:
        The metrics of each split, the weights, and the source of the judgements behind the weights.
    """
    settings: FusionSettings = context.settings["fusion"]
    if context.settings["known_queries.use"]:
        settings = settings.with_known_queries()
    for name in settings.of:
        reason = left_out_reason(context.inputs["trained"] / name)
        if reason:
            return mark_left_out(context.output, reason)

    # These modules import torch, which takes seconds. A fusion that was left out needs none.
    from model_code.stages.evaluation_set import EvaluationSet
    from model_code.stages.fusion import component_folders, evaluate_fusion

    components = {name: component_folders(context, name) for name in settings.of}
    evaluation_set = EvaluationSet.load(context)
    return evaluate_fusion(
        evaluation_set, str(context.name), components, settings, context, context.output
    )


def check(context: StageContext) -> None:
    """Check the fusion's evaluation, its saved retriever, and the evaluations of its variants."""
    from model_code.checks.evaluations import EvaluationChecker
    from model_code.checks.indexes import check_build

    checker = EvaluationChecker.load(context)
    checker.check(str(context.name), context.output, checker.fusion_variants(context.output))
    check_build(context.output / "build")
