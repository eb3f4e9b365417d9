"""The sensor that keeps the live collection fresh, and those that note what failed. The ledger is their state."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.live import BATCHES, PILOTS, RETRAINS
from orchestration.freshness.due import (
    ADD,
    CANCELED,
    FAILED,
    NO_PILOT,
    NOT_ADDED,
    NOT_PILOTED,
    PILOT,
    REMEMBERED,
    RETRAIN,
    Step,
    asking_retriever,
)
from orchestration.project import Project

ADD_DOCUMENTS, PILOT_JOB, RETRAIN_JOB = "add_documents", "pilot", "retrain"
PARTITION = "dagster/partition"  # Dagster's own tag of a run
SECONDS = 30
PARTITIONS = {ADD: BATCHES, PILOT: PILOTS, RETRAIN: RETRAINS}
JOBS = {ADD: ADD_DOCUMENTS, PILOT: PILOT_JOB, RETRAIN: RETRAIN_JOB}


def sensors(project: Project, jobs: Sequence[dg.UnresolvedAssetJobDefinition]) -> list[dg.SensorDefinition]:
    """`freshness`, which starts `jobs`, and `failures` and `cancellations`."""
    status = dg.DagsterRunStatus
    return [
        _freshness(project, jobs),
        _ends(project, "failures", status.FAILURE, "Notes what failed, so that it is tried again."),
        _ends(
            project,
            "cancellations",
            status.CANCELED,
            "Notes a pilot or retrain that a person ended: drift may ask again.",
        ),
    ]


def _freshness(project: Project, jobs: Sequence[dg.UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    @dg.sensor(
        name="freshness",
        jobs=list(jobs),
        minimum_interval_seconds=SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Receives what lies in the inbox; asks for additions, and for a pilot or a retrain when drift "
        "says so.",
    )
    def freshness(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        steps = tick(project)
        if not steps:
            return dg.SkipReason("nothing arrived, and neither a pilot nor a retrain is due")
        return dg.SensorResult(
            run_requests=[_request(step) for step in steps],
            dynamic_partitions_requests=[PARTITIONS[step.kind].build_add_request([step.key]) for step in steps],
        )

    return freshness


def tick(project: Project) -> list[Step]:
    """Receive the inbox and say what is to be done."""
    from model_code.live.collection import retrievers
    from orchestration.freshness.due import next_steps
    from orchestration.live.collection import LiveCollection
    from orchestration.live.inbox import take_all, waiting

    if waiting(project) and retrievers(project.live):
        take_all(LiveCollection(project))
    return next_steps(project)


def _request(step: Step) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{step.kind} {step.key}",
        job_name=JOBS[step.kind],
        partition_key=step.key,
        tags={"freshet/why": step.reason[:200]},
    )


def _ends(project: Project, name: str, status: dg.DagsterRunStatus, description: str) -> dg.SensorDefinition:
    @dg.run_status_sensor(
        run_status=status,
        name=name,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=SECONDS,
        description=description,
    )
    def ends(context: dg.RunStatusSensorContext) -> None:
        note_end(project, context.dagster_run, context.dagster_event.message)

    return ends


def note_end(project: Project, run: dg.DagsterRun, message: str | None) -> None:
    """Keep in the ledger that an addition, a pilot or a retrain failed or was canceled, once for each run and unless
    the gate refused the retrain, which is a verdict and noted already. Other runs are nobody's business.
    """
    from orchestration.freshness.retrain import read_plan
    from orchestration.live.collection import LiveCollection

    canceled = run.status == dg.DagsterRunStatus.CANCELED
    kinds = {ADD_DOCUMENTS: NOT_ADDED, RETRAIN_JOB: FAILED, PILOT_JOB: NOT_PILOTED}
    ended = {RETRAIN_JOB: CANCELED, PILOT_JOB: NO_PILOT} if canceled else {}  # by a person, who wants no other
    kind = (kinds | ended).get(run.job_name)
    if kind is None:
        return
    key = run.tags.get(PARTITION, "")
    asking = asking_retriever(project, key) if run.job_name == PILOT_JOB else None
    plan = read_plan(project, key) if key and asking is None else None
    ledger = LiveCollection(
        project, asking or (plan and plan.retriever)
    ).ledger  # another one may be searched meanwhile
    if not any(one["details"].get("run") == run.run_id for one in ledger.last_decisions(REMEMBERED)):
        details = {"run": run.run_id, "key": key}
        ledger.record_decision(kind, message or f"the run {'was canceled' if canceled else 'failed'}", details)
