"""The jobs: everything from the source to the live collection, or only the evaluation of what is trained."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.live import BATCHES, PILOTS, RETRAINS, SYNCED
from assets.stage_assets import asset_key
from model_code.live.collection import retrievers
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

ADDING, RETRAINING = ("added_documents", "drift_report"), ("retrained_retriever", "retrained_champion")
PILOTING = ("retrain_pilot",)
EVALUATION_STAGES = ("baselines", "evaluate", "comparison")


LIVE_JOBS = [  # which the sensor asks for
    dg.define_asset_job(name, dg.AssetSelection.assets(*assets), partitions_def=partitions, description=text)
    for name, assets, partitions, text in (
        ("add_documents", ADDING, BATCHES,
         "What waits in the ledger becomes searchable; how far the collection has moved is measured."),
        ("retrain", RETRAINING, RETRAINS,
         "Everything that is live, trained anew in a workspace of its own, before the gate."),
        ("pilot", PILOTING, PILOTS,
         "A training on a sample of what is live: whether a retrain would help what is new."),
    )
]  # fmt: skip


def jobs(table: Sequence[Stage]) -> list[dg.UnresolvedAssetJobDefinition]:
    """`full_build` and `evaluate`. Selections are typed: they do not depend on the installed ANTLR version."""
    live = dg.AssetSelection.assets(*ADDING, *PILOTING, *RETRAINING, SYNCED)
    evaluation = [asset_key(stage) for stage in table if stage.name in EVALUATION_STAGES]
    return [
        dg.define_asset_job(
            "full_build",
            selection=dg.AssetSelection.all() - live,
            description="From the corpus's source to a promoted retriever and its live collection.",
        ),
        dg.define_asset_job(
            "evaluate",
            selection=dg.AssetSelection.assets(*evaluation),
            description="Baselines, evaluation of every trained retriever, and the comparison.",
        ),
    ]


def sync_schedule(project: Project, cron: str | None) -> list[dg.ScheduleDefinition]:
    """The schedule `sync`, if `live.sync` says when: the index follows its source, once something is live."""
    if cron is None:
        return []
    return [
        dg.ScheduleDefinition(
            job=dg.define_asset_job("sync", selection=[SYNCED], description="The index follows the project's source."),
            cron_schedule=cron,
            should_execute=lambda _: bool(retrievers(project.live)),
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
    ]
