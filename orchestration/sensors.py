"""The jobs, and what starts them: the sensor that keeps the live collection fresh, others, and the
schedule of a sync.

The ledger is the sensors' state.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.live import BATCHES, MEASURED, PILOTS, RETRAINS, SEARCHABLE, SYNCED, canary_facts
from assets.registry import follow_alias
from assets.stage_assets import ProjectResource, asset_key
from model_code.collection.generations.generation_store import retrievers
from model_code.project import Project, lock_is_free
from model_code.stages.stage import Stage
from orchestration import parameters

if TYPE_CHECKING:
    from model_code.collection.ledger.tasks import Task
    from orchestration.freshness.due_tasks import IngestBacklog

OURS = re.compile(r"^model_code\.errors\.\w+: ")  # before the line that an error of ours is
PARTITION = "dagster/partition"  # Dagster's own tag of a run
# of every sensor
LOOKS = {"minimum_interval_seconds": 30, "default_status": dg.DefaultSensorStatus.RUNNING}
SOON = 120.0  # seconds within which a document is searchable as long as all is well
# seconds between two reports: well within what the policy asks for
EVERY = {SEARCHABLE: 300.0, MEASURED: 1800.0}
ADDING, RETRAINING = (
    ("added_documents", "drift_report"),
    ("retrained_retriever", "retrained_champion"),
)
PILOTING = ("retrain_pilot",)
EVALUATION_STAGES = ("baselines", "evaluate", "comparison")
JOBS = {  # of what is live, by the kind of work, whose own module is slow to import
    kind: dg.define_asset_job(
        name, dg.AssetSelection.assets(*assets), partitions_def=partitions, description=text
    )
    for kind, name, assets, partitions, text in (
        (
            "add",
            "add_documents",
            ADDING,
            BATCHES,
            "What waits in the ledger becomes searchable; how far the collection has moved is measured.",
        ),
        (
            "drift",
            "look_at_drift",
            ADDING[1:],
            BATCHES,
            "How far what a service made searchable, or an addition whose look failed, has moved the collection.",
        ),
        (
            "retrain",
            "retrain",
            RETRAINING,
            RETRAINS,
            "Everything that is live, trained anew in a workspace of its own, before the gate.",
        ),
        (
            "pilot",
            "pilot",
            PILOTING,
            PILOTS,
            "A training on a sample of what is live: whether a retrain would help what is new.",
        ),
    )
}


def build_jobs(table: Sequence[Stage]) -> list[dg.UnresolvedAssetJobDefinition]:
    """`full_build` and `evaluate`. Selections are typed: they do not depend on the installed ANTLR
    version.
    """
    built = dg.AssetSelection.all() - dg.AssetSelection.assets(
        *ADDING, *PILOTING, *RETRAINING, SYNCED
    )
    evaluated = dg.AssetSelection.assets(
        *(asset_key(stage) for stage in table if stage.name in EVALUATION_STAGES)
    )
    build_text = "From the corpus's source to a promoted retriever and its live collection."
    evaluation_text = "Baselines, evaluation of every trained retriever, and the comparison."
    return [
        dg.define_asset_job("full_build", built, description=build_text),
        dg.define_asset_job("evaluate", evaluated, description=evaluation_text),
    ]


def sync_schedule(project: Project, cron: str | None) -> list[dg.ScheduleDefinition]:
    """The schedule `sync`, if `live.sync` says when: the index follows its source, once something
    is live.
    """
    if cron is None:
        return []
    return [
        dg.ScheduleDefinition(
            job=dg.define_asset_job(
                "sync", selection=[SYNCED], description="The index follows the project's source."
            ),
            cron_schedule=cron,
            should_execute=lambda _: bool(retrievers(project.live)),
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
    ]


@dg.sensor(
    jobs=list(JOBS.values()),
    description="Receives what lies in the inbox; asks for additions, and for a pilot or a retrain when drift says so.",
    **LOOKS,
)
def freshness(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SensorResult:
    """Look what is due, and report what is as its policy wants it."""
    from model_code.collection.index.status import read_canary
    from orchestration.freshness.due_tasks import ingest_backlog

    due, stands, reported = (
        tick(project),
        ingest_backlog(project),
        json.loads(context.cursor or "{}"),
    )
    requests = [
        dg.RunRequest(
            work.run_key,
            job_name=JOBS[work.kind].name,
            partition_key=work.run_key,
            tags={"freshet/why": work.reason[:200]},
        )
        for work in due
    ]
    added = [JOBS[work.kind].partitions_def.build_add_request([work.run_key]) for work in due]
    now = time.time()
    well = [
        key
        for key in _well(project, stands)
        if now - reported.get(key.to_user_string(), 0.0) >= EVERY[key]
    ]
    facts = asdict(stands) | canary_facts(read_canary(project)) if stands else {}
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None
        if requests
        else "nothing arrived, and neither a pilot nor a retrain is due",
        dynamic_partitions_requests=added,
        asset_events=[dg.AssetMaterialization(key, metadata=facts) for key in well],
        cursor=json.dumps(reported | {key.to_user_string(): now for key in well}),
    )


def _well(project: Project, stands: IngestBacklog | None) -> list[dg.AssetKey]:
    """The assets that are as their policies want them."""
    if stands is None:
        return []
    minimum = parameters.load(project.params_file).drift.minimum_batch
    good = {SEARCHABLE: stands.oldest < SOON, MEASURED: stands.unmeasured < minimum}
    return [key for key in EVERY if good[key]]


def tick(project: Project) -> list[Task]:
    """Receive the inbox and say what is to be done."""
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.inbox import receive_inbox, waiting
    from orchestration.freshness.due_tasks import request_due_tasks

    if waiting(project) and retrievers(project.live):
        receive_inbox(LiveIndex(project))
    return request_due_tasks(project)


# by its name: Dagster copies a sensor whose own job wants a resource, and warns of a beta while it
# does so
@dg.sensor(
    job_name=follow_alias.name,
    description="Looks whether a person moved the champion in MLflow.",
    **LOOKS,
)
def champion_alias(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> dg.RunRequest | dg.SkipReason:
    """Ask for `follow_alias` where live has not followed the alias yet."""
    from orchestration.pipeline.runs import store_folder
    from orchestration.registry import history, release
    from orchestration.registry.versions import REGISTRY_LOCK

    folder = store_folder(project)
    if not folder.exists() or not lock_is_free(folder / REGISTRY_LOCK):
        return dg.SkipReason("nothing is registered yet, or a promotion runs")
    moved = release.manual_alias_change(project)
    if moved is None:
        return dg.SkipReason("the champion in MLflow is the one that was promoted last")
    run_key = f"{len(history.read(project))}: {moved}"  # each settled move is a line of the history
    return dg.RunRequest(run_key=run_key, tags={"freshet/why": str(moved)})


@dg.sensor(
    **LOOKS,
    description="Tells `live.webhook` what goes wrong, each thing once: failed runs and work, documents that wait, "
    "drift, a gate that refused. Without an address it stands here alone.",
)
def notices(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """Tell what was not told yet."""
    from orchestration.freshness.notices import find_problems, send_notice

    since = datetime.now(UTC) - timedelta(days=1)
    failed = context.instance.get_runs(
        dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=since)
    )
    messages = find_problems(project) | {
        run.run_id: _failure(context.instance, run) for run in failed
    }
    messages |= _stale(context.instance)
    new = [text for key, text in messages.items() if key not in json.loads(context.cursor or "[]")]
    if new:
        send_notice(project, new)
    # behind the telling: one that failed is tried again
    context.update_cursor(json.dumps(list(messages)))
    return dg.SkipReason("; ".join(messages.values()) or "nothing is wrong")


def _failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """What failed, and why in a line: what the step that failed raised."""
    failures = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1
    ).records
    errors = [failure.event_log_entry.dagster_event.step_failure_data.error for failure in failures]
    reasons = [
        OURS.sub("", (error.cause or error).message.partition("\n")[0]) for error in errors if error
    ]
    return ": ".join([f"run {run.run_id[:8]} of {run.job_name} failed", *reasons])


def _stale(instance: dg.DagsterInstance) -> dict[str, str]:
    """Which freshness policies fail, as Dagster's daemon saw last: the sensor is dead, a schedule
    missed its time.
    """
    states = instance.get_freshness_state_records([SEARCHABLE, MEASURED, SYNCED])
    return {
        f"stale {key.to_user_string()} {record.updated_at}": f"{key.to_user_string()}: not fresh since "
        f"{record.updated_at:%Y-%m-%d %H:%M} UTC"
        for key, record in states.items()
        if record.freshness_state.value == "FAIL"
    }


def _ends(name: str, status: dg.DagsterRunStatus, description: str) -> dg.SensorDefinition:
    @dg.run_status_sensor(run_status=status, name=name, description=description, **LOOKS)
    def ends(context: dg.RunStatusSensorContext, project: ProjectResource) -> None:
        from orchestration.freshness.due_tasks import record_run_end

        run, canceled = context.dagster_run, status == dg.DagsterRunStatus.CANCELED
        outcome = (
            context.dagster_event.message or f"the run {'was canceled' if canceled else 'failed'}"
        )
        record_run_end(project, run.tags.get(PARTITION, ""), run.run_id, outcome, canceled)

    return ends


SENSORS = [
    freshness,
    champion_alias,
    notices,
    _ends("failures", dg.DagsterRunStatus.FAILURE, "Notes what failed, so that it is tried again."),
    _ends(
        "cancellations",
        dg.DagsterRunStatus.CANCELED,
        "Notes a pilot or retrain that a person ended: drift may ask again.",
    ),
]
