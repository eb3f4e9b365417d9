"""Queries that a model writes for added documents, in Dagster: an asset of its own, as a model takes its time."""

from typing import Any

import dagster as dg

from orchestration.project import Project

WRITINGS = dg.DynamicPartitionsDefinition(name="written_queries")
MODEL_POOL = "gpu"  # that of trainings


def written_queries_asset(project: Project) -> dg.AssetsDefinition:
    """`written_queries`. It is not in the writer's pool: each piece takes the writer's lock only to be applied."""

    @dg.asset(group_name="live", kinds={"pytorch"}, partitions_def=WRITINGS, pool=MODEL_POOL)
    def written_queries(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        """Queries for documents that came without any, written by a model; they place these documents' vectors."""
        from orchestration.writing_queries import outcome_text, write_queries

        found = write_queries(project, progress=lambda done, total, note: context.log.info(f"{done}/{total} {note}"))
        facts: dict[str, Any] = {"what happened": outcome_text(found), "generation": found.generation}
        return dg.MaterializeResult(metadata=facts | {"documents": found.documents, "queries": found.queries})

    return written_queries
