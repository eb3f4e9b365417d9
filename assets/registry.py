"""After a build: the best retriever registered as challenger, and the champion that the gate leaves."""

from collections.abc import Sequence

import dagster as dg

from assets.stage_assets import asset_key
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

NEEDED = ("index", "evaluate", "comparison")


def registry_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`registered_retriever` and `champion`."""

    @dg.asset(group_name="registry", kinds={"mlflow"}, deps=[asset_key(s) for s in table if s.name in NEEDED])
    def registered_retriever(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The retriever that is best on dev, registered in MLflow as challenger."""
        from orchestration.registry import release

        version = release.register(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version.key),
            metadata={"version": version.version, "retriever": version.retriever},
        )

    @dg.asset(group_name="registry", kinds={"mlflow"}, deps=["registered_retriever"])
    def champion(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The retriever that serves: the challenger if it passed the gate, else the one that served before."""
        from orchestration.registry import release

        move = release.promote(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(move.champion.key if move.champion else "none"),
            metadata={
                "champion": str(move.champion) if move.champion else "none",
                "passed": move.passed,
                "what happened": move.summary,
            },
        )

    return [registered_retriever, champion]
