"""Dagster assets of the registry: the first champion, the registered retriever and the champion."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.evaluation import BASELINES_PRIORITY
from assets.pages import table
from assets.stage_assets import ProjectResource, asset_key, log_line
from model_code.stages.stage import Stage

if TYPE_CHECKING:
    from orchestration.registry.release import PromotionResult

# The stages that must be built before a retriever is registered.
REQUIRED_STAGES = ("index", "evaluate", "fuse", "comparison")


def registry_assets(stages: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """Return the assets `first_champion`, `registered_retriever` and `champion`."""
    baselines = [asset_key(stage) for stage in stages if stage.name == "baselines"]
    required = [asset_key(stage) for stage in stages if stage.name in REQUIRED_STAGES]

    @dg.asset(
        group_name="registry",
        kinds={"mlflow"},
        deps=baselines,
        op_tags={"dagster/priority": str(BASELINES_PRIORITY)},
        description="The first champion: the best of BM25, the base encoder and their fusion, "
        "promoted and made live before anything is trained. Runs in a full build once the "
        "baselines are evaluated. Changes nothing if there is a champion or something is live.",
    )
    def first_champion(
        context: dg.AssetExecutionContext, project: ProjectResource
    ) -> dg.MaterializeResult:
        """Make the best untrained system champion, unless there is a champion.

        The champion is searched by default, so searches are possible before anything is trained.
        """
        from orchestration.registry import release

        result = release.promote_first_champion(project)
        if result is None:
            summary = "there is a champion, or something is live already"
        else:
            summary = f"untrained: {result.summary}"
        log_line(context, summary)
        return dg.MaterializeResult(metadata={"what happened": summary})

    @dg.asset(
        group_name="registry",
        kinds={"mlflow"},
        deps=["first_champion", *required],
        description="The retriever with the best scores on dev, registered in MLflow as "
        "challenger. Runs in a full build once all systems are compared. Writes a version with "
        "copies of the encoder, the index, the hierarchy and the documents.",
    )
    def registered_retriever(project: ProjectResource) -> dg.MaterializeResult:
        """Register the best retriever as challenger, the version that asks to be promoted."""
        from orchestration.registry import release

        version = release.register(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version.key),
            metadata={"version": version.version, "retriever": version.retriever},
        )

    return [first_champion, registered_retriever, champion]


@dg.asset(
    group_name="registry",
    kinds={"mlflow"},
    deps=["registered_retriever"],
    description="The version that is searched by default: the challenger if it passed the gate, "
    "otherwise the champion before. Runs in a full build after the registration. Writes a line of "
    "the promotion history, and moves the alias `champion` if the gate passed.",
)
def champion(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """Promote the challenger if it passes the gate.

    The gate is a statistical test that compares the challenger with the present champion.
    """
    from orchestration.registry import release

    result = release.promote(project)
    log_line(context, result.summary)
    key = result.champion.key if result.champion else "none"
    return dg.MaterializeResult(
        data_version=dg.DataVersion(key), metadata=_promotion_metadata(project, result)
    )


def _promotion_metadata(project: ProjectResource, result: "PromotionResult") -> dict[str, Any]:
    """Return the outcome, the gate's last verdict, and a link to the champion in the registry."""
    from orchestration.registry import history, versions

    metadata: dict[str, Any] = {
        "champion": str(result.champion or "none"),
        "passed": result.passed,
        "what happened": result.summary,
    }
    if result.champion is not None:
        page = versions.version_page(project, result.champion)
        metadata["registry version"] = dg.MetadataValue.url(page)

    # If the champion stays the same, the gate may not have been asked. The page then shows the
    # verdict of an earlier promotion.
    last = history.last_verdict(project)
    if last is not None:
        outcome = "passed" if last["verdict"]["passed"] else "refused"
        statements = [*last["verdict"]["reasons"], *last["verdict"]["findings"]]
        metadata["gate's last verdict"] = (
            f"{last['when']}: version {last['to']} {outcome}: {'; '.join(statements)}"
        )
        metadata["gate's numbers"] = table(last["verdict"]["intervals"])
        for group, intervals in last["verdict"]["by_known_queries"].items():
            kind = group.replace("_", " ")
            metadata[f"gate's numbers, documents {kind} queries"] = table(intervals)
    return metadata


@dg.op(
    retry_policy=dg.RetryPolicy(max_retries=1, delay=5),
    description="Makes the version with the alias `champion` live, or moves the alias back, as the "
    "gate and the setting `promotion.by_hand` decide.",
)
def reconcile_champion(context: dg.OpExecutionContext, project: ProjectResource) -> None:
    """Accept or undo a change of the alias `champion` that a person made in MLflow."""
    from orchestration.registry import release

    result = release.reconcile_alias(project)
    if result is None:
        context.log.info("the alias is where the last promotion put it")
        return
    context.log.info(result.summary)
    metadata = _promotion_metadata(project, result)
    context.log_event(dg.AssetMaterialization("champion", metadata=metadata))


@dg.job(
    executor_def=dg.in_process_executor,
    description="Follows the alias `champion` after a person moved it in MLflow: the gate judges "
    "the version, which becomes live, or the alias is moved back. Started by the sensor "
    "`champion_alias`.",
)
def follow_alias() -> None:
    """Accept or undo a person's move of the alias `champion`, as `reconcile_champion` decides."""
    reconcile_champion()
