"""The Dagster sensors, which keep the live collection fresh.

The ledger holds the state of the sensors. They can be stopped at any time, and nothing is lost.
Their descriptions are shown on Dagster's pages. Slow modules are imported inside functions, so that
Dagster loads the definitions quickly.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.live import MEASURED, SEARCHABLE, SYNCED, canary_metadata
from assets.registry import follow_alias
from assets.stage_assets import ProjectResource
from model_code.collection.generations.generation_store import retrievers
from model_code.project import Project, lock_is_free
from orchestration import parameters
from orchestration.jobs import TASK_JOBS

if TYPE_CHECKING:
    from model_code.collection.ledger.tasks import Task
    from orchestration.freshness.backlog import IngestBacklog

SENSOR_OPTIONS = {
    "minimum_interval_seconds": 30,
    "default_status": dg.DefaultSensorStatus.RUNNING,
}
# Tags of a run. The first two are Dagster's own.
PARTITION_TAG = "dagster/partition"
RUN_KEY_TAG = "dagster/run_key"
REASON_TAG = "freshet/why"
NOTHING_DUE = "nothing arrived, and no drift check, retune, pilot or retrain is due"
MAX_REASON_CHARACTERS = 300
# The name of an error class of this project at the beginning of a message.
ERROR_CLASS = re.compile(r"^(freshet|model_code)\.errors\.\w+: ")
# Seconds within which a recorded change must become searchable. Later, the asset
# `searchable_documents` does not count as fresh.
MAX_WAIT_SECONDS = 120.0
# Seconds between two reports that an asset is fresh. Its freshness policy allows a longer time.
REPORT_INTERVAL_SECONDS = {SEARCHABLE: 300.0, MEASURED: 1800.0}


@dg.sensor(
    jobs=list(TASK_JOBS.values()),
    description="Receives files from the inbox, and starts what is due: additions, drift checks, "
    "and the retunes, pilots and retrains that a drift check requested. It also reports "
    "`searchable_documents` and `measured_drift` while they are fresh.",
    **SENSOR_OPTIONS,
)
def freshness(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SensorResult:
    """Start the tasks that are due, and report the assets that are fresh."""
    run_requests = []
    partition_requests = []
    skip_reasons = []
    for task in receive_inbox_and_request_tasks(project):
        job = TASK_JOBS[task.kind]
        started = _describe_started_run(context.instance, task.run_key)
        if started is not None:
            # A run was started for this task already. Dagster would skip the request without saying
            # why.
            skip_reasons.append(f"{job.name}: {started} ({task.reason})")
            continue
        request = dg.RunRequest(
            task.run_key,
            job_name=job.name,
            partition_key=task.run_key,
            tags={REASON_TAG: task.reason[:MAX_REASON_CHARACTERS]},
        )
        run_requests.append(request)
        partition_requests.append(job.partitions_def.build_add_request([task.run_key]))

    skip_reason = None
    if not run_requests:
        skip_reason = "; ".join(skip_reasons) or _describe_nothing_due(project)

    # Dagster keeps the cursor, a text, between two calls of the sensor. It holds the time of the
    # last report of each asset, in seconds since 1970.
    report_times = json.loads(context.cursor or "{}")
    reports = _report_fresh_assets(project, report_times)

    return dg.SensorResult(
        run_requests=run_requests,
        skip_reason=skip_reason,
        dynamic_partitions_requests=partition_requests,
        asset_events=reports,
        cursor=json.dumps(report_times),
    )


def _describe_nothing_due(project: Project) -> str:
    """Say that nothing is due, and which step the last drift check held back, if any."""
    from model_code.collection.index.status import held_back_step

    held_back = held_back_step(project)
    if held_back is None:
        return NOTHING_DUE
    return f"{NOTHING_DUE}; {held_back}"


def _describe_started_run(instance: dg.DagsterInstance, run_key: str) -> str | None:
    """Describe the run that was started for a task already; None if there is none."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1)
    if not runs:
        return None
    state = runs[0].status.value.lower().replace("_", " ")
    return f"run {runs[0].run_id[:8]} is {state}"


def receive_inbox_and_request_tasks(project: Project) -> list[Task]:
    """Receive the files in the inbox, and return the tasks that are due."""
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.inbox import receive_inbox, waiting
    from orchestration.freshness.due_tasks import request_due_tasks

    if waiting(project) and retrievers(project.live):
        receive_inbox(LiveIndex(project))
    return request_due_tasks(project)


def _report_fresh_assets(
    project: Project, report_times: dict[str, float]
) -> list[dg.AssetMaterialization]:
    """Return a report for each fresh asset that was not reported lately.

    Args:
        project: The project.
        report_times: Time of the last report of each asset, in seconds since 1970. The times of
            the new reports are written into it.
    """
    from orchestration.freshness.backlog import ingest_backlog

    backlog = ingest_backlog(project)
    reports = []
    for key in _fresh_assets(project, backlog):
        name = key.to_user_string()
        seconds_since_report = time.time() - report_times.get(name, 0.0)
        if seconds_since_report >= REPORT_INTERVAL_SECONDS[key]:
            metadata = _backlog_metadata(project, backlog)
            reports.append(dg.AssetMaterialization(key, metadata=metadata))
            report_times[name] = time.time()
    return reports


def _fresh_assets(project: Project, backlog: IngestBacklog | None) -> list[dg.AssetKey]:
    """Return the assets that are as fresh as their policies demand."""
    from orchestration.freshness.backlog import events_to_check

    if backlog is None:
        return []

    fresh = []
    if backlog.oldest_seconds < MAX_WAIT_SECONDS:
        fresh.append(SEARCHABLE)
    if events_to_check(backlog, parameters.load(project.params_file).drift) is None:
        fresh.append(MEASURED)
    return fresh


def _backlog_metadata(project: Project, backlog: IngestBacklog) -> dict[str, Any]:
    """Describe what waits, and how the newest document is found, for the page of an asset."""
    from model_code.collection.index.status import read_canary

    metadata: dict[str, Any] = {
        "generation": backlog.generation,
        "documents": backlog.documents,
        "waiting": backlog.waiting,
        "oldest": backlog.oldest_seconds,
        "measured": backlog.last_measured,
        "unmeasured": backlog.unmeasured,
    }
    metadata.update(canary_metadata(read_canary(project)))
    return metadata


# The job is given by its name: Dagster copies a sensor whose own job needs a resource, and warns of
# a beta feature when it does.
@dg.sensor(
    job_name=follow_alias.name,
    description="Starts the job `follow_alias` when a person moved the alias `champion` in MLflow.",
    **SENSOR_OPTIONS,
)
def champion_alias(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> dg.RunRequest | dg.SkipReason:
    """Request the job `follow_alias` if a person moved the alias `champion` in MLflow."""
    from orchestration.pipeline.runs import store_folder
    from orchestration.registry import history, release
    from orchestration.registry.versions import REGISTRY_LOCK

    store = store_folder(project)
    if not store.exists() or not lock_is_free(store / REGISTRY_LOCK):
        return dg.SkipReason("nothing is registered yet, or a promotion is running")

    change = release.manual_alias_change(project)
    if change is None:
        return dg.SkipReason("the champion in MLflow is the version that was promoted last")

    # Dagster runs each key only once. Every change that `follow_alias` reconciles adds a line to
    # the history, so that the same change gets another key later.
    run_key = f"{len(history.read(project))}: {change}"
    return dg.RunRequest(run_key=run_key, tags={REASON_TAG: str(change)})


@dg.sensor(
    description="Sends each new problem once to the address in `live.webhook`: failed runs and "
    "tasks, documents that are not searchable in time, drift, a refused promotion, and assets "
    "that are not fresh. Without an address, problems are only shown here.",
    **SENSOR_OPTIONS,
)
def notices(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """Send the problems that were not sent yet to the address in `live.webhook`."""
    from orchestration.freshness.notices import failed_task_runs, find_problems, send_notice

    problems = find_problems(project)
    runs_of_failed_tasks = failed_task_runs(project)
    for run_id, message in _failed_runs(context.instance).items():
        # A failed task is among the problems already, with the error of its run.
        if run_id not in runs_of_failed_tasks:
            problems[run_id] = message
    problems.update(_stale_assets(context.instance))

    # Dagster keeps the cursor, a text, between two calls of the sensor. It holds the keys of the
    # problems that were sent.
    sent = json.loads(context.cursor or "[]")
    new = [message for key, message in problems.items() if key not in sent]
    if new:
        send_notice(project, new)
    # The cursor is set after sending. If sending fails, the next call sends the same problems.
    context.update_cursor(json.dumps(list(problems)))
    return dg.SkipReason("; ".join(problems.values()) or "nothing is wrong")


def _failed_runs(instance: dg.DagsterInstance) -> dict[str, str]:
    """Return a message for each run that failed during the last day, by its id."""
    since = datetime.now(UTC) - timedelta(days=1)
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=since)
    return {run.run_id: _describe_failure(instance, run) for run in instance.get_runs(failed)}


def _describe_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Name the run, and the first line of the error that its step raised."""
    description = f"run {run.run_id[:8]} of {run.job_name} failed"
    failures = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1
    ).records
    for failure in failures:
        error = failure.event_log_entry.dagster_event.step_failure_data.error
        if error:
            raised = error.cause or error
            first_line = raised.message.partition("\n")[0]
            description += f": {ERROR_CLASS.sub('', first_line)}"
    return description


def _stale_assets(instance: dg.DagsterInstance) -> dict[str, str]:
    """Return a message for each freshness policy that failed when Dagster's daemon last looked.

    A policy fails if the sensor does not run, or if a schedule was missed.
    """
    messages = {}
    for key, record in instance.get_freshness_state_records([SEARCHABLE, MEASURED, SYNCED]).items():
        if record.freshness_state.value == "FAIL":
            name = key.to_user_string()
            messages[f"stale {name} {record.updated_at}"] = (
                f"{name}: not fresh since {record.updated_at:%Y-%m-%d %H:%M} UTC"
            )
    return messages


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.FAILURE,
    description="Records that the run of a task failed, so that the task is tried again.",
    **SENSOR_OPTIONS,
)
def failures(context: dg.RunStatusSensorContext, project: ProjectResource) -> None:
    """Record in the ledger that the run of a task failed, so that the task is tried again."""
    _record_run_end(context, project, default_outcome="the run failed", canceled=False)


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.CANCELED,
    description="Records that a person canceled the run of a task, so that it is not tried again. "
    "A later drift check may request it again. A canceled addition is tried again.",
    **SENSOR_OPTIONS,
)
def cancellations(context: dg.RunStatusSensorContext, project: ProjectResource) -> None:
    """Record in the ledger that a person canceled the run of a task."""
    _record_run_end(context, project, default_outcome="the run was canceled", canceled=True)


def _record_run_end(
    context: dg.RunStatusSensorContext, project: Project, default_outcome: str, canceled: bool
) -> None:
    """Record in the ledger that the run of a task ended without success.

    Args:
        context: The run and its last event.
        project: The project.
        default_outcome: What happened, if the event has no message.
        canceled: Whether a person canceled the run.
    """
    from orchestration.freshness.due_tasks import record_run_end

    run = context.dagster_run
    outcome = context.dagster_event.message or default_outcome
    # The run of a task has the run key of the task as its partition. Other runs have no partition,
    # or one that is no run key. `record_run_end` ignores those.
    run_key = run.tags.get(PARTITION_TAG, "")
    record_run_end(project, run_key, run.run_id, outcome, canceled)


SENSORS = [freshness, champion_alias, notices, failures, cancellations]
