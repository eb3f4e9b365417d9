"""The Dagster jobs, and the schedule of a sync.

Descriptions are shown on Dagster's pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.live import BATCHES, DRIFT_CHECKS, PILOTS, RETRAINS, RETUNES, SYNCED
from assets.stage_assets import asset_key
from model_code.collection.generations.generation_store import retrievers
from model_code.project import Project
from model_code.stages.stage import Stage

# Names of the assets that each job materializes.
DRIFT_ASSETS = ("drift_report",)
ADDING_ASSETS = ("added_documents",)
RETUNE_ASSETS = ("tuned_weights",)
PILOT_ASSETS = ("retrain_pilot",)
RETRAIN_ASSETS = ("retrained_retriever", "retrained_champion")
# Names of the stages whose assets the job `evaluate` materializes.
EVALUATION_STAGES = ("baselines", "evaluate", "comparison")
# All steps of a run must run in one process, because they share the list of stages to run, which
# that process keeps in memory. Each job names the executor, because another Dagster project that
# includes these jobs has a different default.
EXECUTOR = dg.in_process_executor

add_documents = dg.define_asset_job(
    "add_documents",
    dg.AssetSelection.assets(*ADDING_ASSETS),
    partitions_def=BATCHES,
    executor_def=EXECUTOR,
    description="Makes the changes that are waiting in the ledger searchable as a new generation. "
    "Started by the sensor `freshness` when changes are waiting.",
)
check_drift = dg.define_asset_job(
    "check_drift",
    dg.AssetSelection.assets(*DRIFT_ASSETS),
    partitions_def=DRIFT_CHECKS,
    executor_def=EXECUTOR,
    description="Checks the drift of documents that are searchable and not measured yet, and "
    "writes a drift report to the ledger. Started by the sensor `freshness` when "
    "`drift.minimum_batch` changes are unmeasured, for example after a service added them.",
)
retune = dg.define_asset_job(
    "retune",
    dg.AssetSelection.assets(*RETUNE_ASSETS),
    partitions_def=RETUNES,
    executor_def=EXECUTOR,
    description="Chooses the weights of the live fusion again, on queries that were judged since, "
    "and searches with them if the gate accepts them. Nothing is trained. Started by the sensor "
    "`freshness` when a drift check requested a retune.",
)
pilot = dg.define_asset_job(
    "pilot",
    dg.AssetSelection.assets(*PILOT_ASSETS),
    partitions_def=PILOTS,
    executor_def=EXECUTOR,
    description="Trains on a sample of the live documents, and tells whether a retrain would help. "
    "Started by the sensor `freshness` when a drift check requested a pilot. Requests a retrain if "
    "it would help, and changes nothing else.",
)
retrain = dg.define_asset_job(
    "retrain",
    dg.AssetSelection.assets(*RETRAIN_ASSETS),
    partitions_def=RETRAINS,
    executor_def=EXECUTOR,
    description="Trains every retriever on all live documents, in a separate workspace, and "
    "promotes the best one if it passes the gate. Started by the sensor `freshness` when a drift "
    "check or a pilot requested a retrain.",
)

# The job that carries out a task, by the kind of task. The keys are plain texts, because the module
# of the enumeration `TaskKind` is slow to import.
TASK_JOBS = {
    "add": add_documents,
    "drift": check_drift,
    "retune": retune,
    "pilot": pilot,
    "retrain": retrain,
}


def build_jobs(
    table: Sequence[Stage], keys: Sequence[dg.AssetKey]
) -> list[dg.UnresolvedAssetJobDefinition]:
    """Return the jobs `full_build` and `evaluate` for the stages of a project.

    Assets are selected with objects. Dagster parses selections as text with ANTLR, which fails with
    some installed versions of ANTLR.

    Args:
        table: All expanded stages of the project.
        keys: The project's assets. Another Dagster project that includes them has further assets,
            which `full_build` leaves alone.
    """
    not_built = dg.AssetSelection.assets(
        *ADDING_ASSETS, *DRIFT_ASSETS, *RETUNE_ASSETS, *PILOT_ASSETS, *RETRAIN_ASSETS, SYNCED
    )
    evaluation_keys = [asset_key(stage) for stage in table if stage.name in EVALUATION_STAGES]

    full_build = dg.define_asset_job(
        "full_build",
        dg.AssetSelection.assets(*keys) - not_built,
        executor_def=EXECUTOR,
        description="Runs everything from the corpus's source to a promoted retriever and its live "
        "collection. Stages that are up to date are skipped.",
    )
    evaluate = dg.define_asset_job(
        "evaluate",
        dg.AssetSelection.assets(*evaluation_keys),
        executor_def=EXECUTOR,
        description="Evaluates the baselines and every trained retriever, and compares them.",
    )
    return [full_build, evaluate]


def sync_schedules(project: Project, cron: str | None) -> list[dg.ScheduleDefinition]:
    """Return the schedule `sync`; none if `live.sync` is null.

    Args:
        project: The project. Nothing is synced before something is live.
        cron: The setting `live.sync`.
    """
    if cron is None:
        return []

    def something_is_live(context: dg.ScheduleEvaluationContext) -> bool:
        return bool(retrievers(project.live))

    sync = dg.define_asset_job(
        "sync",
        selection=[SYNCED],
        executor_def=EXECUTOR,
        description="Makes the index hold exactly the documents of all its sources. Started by its "
        "schedule, which the setting `live.sync` sets.",
    )
    schedule = dg.ScheduleDefinition(
        job=sync,
        cron_schedule=cron,
        should_execute=something_is_live,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Follows all sources of the index at the times of the setting `live.sync`.",
    )
    return [schedule]
