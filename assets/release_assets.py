"""Around a build in Dagster: the source's lock before it; registration, promotion and the live collection after."""

from collections.abc import Sequence

import dagster as dg

from assets.asset_graph import LOCK_KEY, asset_key
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

NEEDED = ("index", "evaluate", "comparison")


def release_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`corpus_lock`, `registered_retriever`, `champion` and `live_generation`."""
    return [_corpus_lock(project), _registered(project, table), _champion(project), _live(project)]


def _corpus_lock(project: Project) -> dg.AssetsDefinition:
    @dg.asset(key=LOCK_KEY, group_name="corpus", kinds={"json"})
    def corpus_lock(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """What the corpus's source holds now: versions and content hash, through which every stage sees it."""
        from orchestration.pipeline.ingest import ingest

        lock = ingest(project)
        facts = {name: value for name, value in lock.items() if isinstance(value, (str, int, float))}
        return dg.MaterializeResult(data_version=dg.DataVersion(lock["content_hash"]), metadata=facts)

    return corpus_lock


def _registered(project: Project, table: Sequence[Stage]) -> dg.AssetsDefinition:
    @dg.asset(group_name="registry", kinds={"mlflow"}, deps=[asset_key(s) for s in table if s.name in NEEDED])
    def registered_retriever(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The retriever that is best on dev, registered in MLflow as challenger."""
        from orchestration.registry import release

        version = release.register(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version.key),
            metadata={"version": version.version, "retriever": version.retriever},
        )

    return registered_retriever


def _champion(project: Project) -> dg.AssetsDefinition:
    @dg.asset(group_name="registry", kinds={"mlflow"}, deps=["registered_retriever"])
    def champion(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The retriever that serves: the challenger if it passed the gate, else the one that served before."""
        from orchestration.registry import release

        move = release.promote(project)
        champion = move.champion
        return dg.MaterializeResult(
            data_version=dg.DataVersion(champion.key if champion else "none"),
            metadata={
                "champion": f"version {champion.version} ({champion.retriever})" if champion else "none",
                "passed": move.passed,
                "what happened": move.summary,
            },
        )

    return champion


def _live(project: Project) -> dg.AssetsDefinition:
    @dg.asset(group_name="live", kinds={"faiss"}, deps=["champion"])
    def live_generation(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The champion's build as an immutable generation that searchers read."""
        from orchestration.registry import release

        generation = release.open_live(project)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{generation.retriever}/{generation.number}"),
            metadata={"retriever": generation.retriever, "generation": generation.number},
        )

    return live_generation
