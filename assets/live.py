"""What is searched: the champion's build as a generation of the live collection."""

import dagster as dg

from orchestration.project import Project


def live_assets(project: Project) -> list[dg.AssetsDefinition]:
    """`live_generation`."""

    @dg.asset(group_name="live", kinds={"faiss"}, deps=["champion"])
    def live_generation(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The champion's build as an immutable generation that searchers read."""
        from orchestration.registry import release

        generation = release.open_live(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{generation.retriever}/{generation.number}"),
            metadata={"retriever": generation.retriever, "generation": generation.number},
        )

    return [live_generation]
