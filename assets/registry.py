"""After a build: the best retriever registered as challenger, and the champion that the gate
leaves.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.evaluation import BASELINES_PRIORITY
from assets.stage_assets import ProjectResource, asset_key, log_line
from model_code.stages.stage import Stage

if TYPE_CHECKING:
    from orchestration.registry.release import PromotionResult

NEEDED = ("index", "evaluate", "fuse", "comparison")


def registry_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`first_champion`, `registered_retriever` and `champion`."""

    @dg.asset(
        group_name="registry",
        kinds={"mlflow"},
        deps=[asset_key(stage) for stage in table if stage.name == "baselines"],
        op_tags={"dagster/priority": str(BASELINES_PRIORITY)},
    )
    def first_champion(
        context: dg.AssetExecutionContext, project: ProjectResource
    ) -> dg.MaterializeResult:
        """The best of BM25, base encoder and both fused, before any training, where nothing is live
        yet.
        """
        from orchestration.registry import release

        move = release.promote_first_champion(project)
        summary = (
            f"untrained: {move.summary}"
            if move
            else "there is a champion, or something is live already"
        )
        log_line(context, summary)
        return dg.MaterializeResult(metadata={"what happened": summary})

    @dg.asset(
        group_name="registry",
        kinds={"mlflow"},
        deps=["first_champion", *(asset_key(stage) for stage in table if stage.name in NEEDED)],
    )
    def registered_retriever(project: ProjectResource) -> dg.MaterializeResult:
        """The retriever that is best on dev, registered in MLflow as challenger."""
        from orchestration.registry import release

        version = release.register(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version.key),
            metadata={"version": version.version, "retriever": version.retriever},
        )

    return [first_champion, registered_retriever, champion]


@dg.asset(group_name="registry", kinds={"mlflow"}, deps=["registered_retriever"])
def champion(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """The retriever that serves: the challenger if it passed the gate, else the one that served
    before.
    """
    from orchestration.registry import release

    move = release.promote(project)
    log_line(context, move.summary)
    version = dg.DataVersion(move.champion.key if move.champion else "none")
    return dg.MaterializeResult(data_version=version, metadata=_facts(move))


def _facts(move: "PromotionResult") -> dict[str, Any]:
    return {
        "champion": str(move.champion or "none"),
        "passed": move.passed,
        "what happened": move.summary,
    }


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1, delay=5))
def settle_alias(context: dg.OpExecutionContext, project: ProjectResource) -> None:
    """Have live follow the alias `champion`, or the alias go back, as the gate and the settings
    say.
    """
    from orchestration.registry import release

    move = release.reconcile_alias(project)
    context.log.info(move.summary if move else "the alias is where the last promotion put it")
    if move:
        context.log_event(dg.AssetMaterialization("champion", metadata=_facts(move)))


@dg.job(
    description="The alias was moved in MLflow: the gate judges it, and live follows or the alias goes back."
)
def follow_alias() -> None:
    """Begun by the sensor where a person moved the champion in MLflow."""
    settle_alias()
