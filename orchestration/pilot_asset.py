"""A pilot in Dagster: where drift leaves harm in doubt, a training on a sample tells whether a retrain is due."""

import dagster as dg

from orchestration.project import Project

PILOTS = dg.DynamicPartitionsDefinition(name="pilots")
TRAINING_POOL = "gpu"


def retrain_pilot_asset(project: Project) -> dg.AssetsDefinition:
    """`retrain_pilot`. It is not in the writer's pool: documents arrive while it trains."""

    @dg.asset(group_name="live", kinds={"pytorch"}, partitions_def=PILOTS, pool=TRAINING_POOL)
    def retrain_pilot(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        """A retrain on a sample of what is live, judged by the queries that new documents came with."""
        from orchestration.retraining.pilot_steps import pilot_for_drift

        answer = pilot_for_drift(project, context.partition_key, context.log.info)
        return dg.MaterializeResult(metadata={"what happened": answer})

    return retrain_pilot
