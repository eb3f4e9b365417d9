"""The sensor that keeps the live collection fresh, and the one that notes what failed. The ledger is their state."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from orchestration.freshness_assets import BATCHES, RETRAINS
from orchestration.freshness_steps import ADD, FAILED, RETRAIN, Step
from orchestration.project import Project

ADD_DOCUMENTS, RETRAIN_JOB = "add_documents", "retrain"
SECONDS = 30
PARTITIONS = {ADD: BATCHES, RETRAIN: RETRAINS}
JOBS = {ADD: ADD_DOCUMENTS, RETRAIN: RETRAIN_JOB}


def sensors(project: Project, jobs: Sequence[dg.UnresolvedAssetJobDefinition]) -> list[dg.SensorDefinition]:
    """`freshness`, which starts `jobs`, and `retrain_failures`."""
    return [_freshness(project, jobs), _failures(project)]


def _freshness(project: Project, jobs: Sequence[dg.UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    @dg.sensor(
        name="freshness",
        jobs=list(jobs),
        minimum_interval_seconds=SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Receives what lies in the inbox; asks for additions, and for a retrain when drift says so.",
    )
    def freshness(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        steps = tick(project)
        if not steps:
            return dg.SkipReason("nothing arrived, and no retrain is due")
        return dg.SensorResult(
            run_requests=[_request(step) for step in steps],
            dynamic_partitions_requests=[PARTITIONS[step.kind].build_add_request([step.key]) for step in steps],
        )

    return freshness


def tick(project: Project) -> list[Step]:
    """Receive the inbox and say what is to be done."""
    from model_code.live.collection import retrievers
    from orchestration.freshening import Freshener
    from orchestration.freshness_steps import next_steps
    from orchestration.inbox import take_all, waiting

    if waiting(project) and retrievers(project.live):
        take_all(Freshener(project))
    return next_steps(project)


def _request(step: Step) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{step.kind} {step.key}",
        job_name=JOBS[step.kind],
        partition_key=step.key,
        tags={"freshet/why": step.reason[:200]},
    )


def _failures(project: Project) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name="retrain_failures",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=SECONDS,
        description="Notes a failed retrain in the ledger, so that it is tried again.",
    )
    def retrain_failures(context: dg.RunFailureSensorContext) -> None:
        if context.dagster_run.job_name == RETRAIN_JOB:
            note_failure(project, context.dagster_run.run_id, context.failure_event.message)

    return retrain_failures


def note_failure(project: Project, run_id: str, message: str | None) -> None:
    """Keep in the ledger that a retrain failed, unless the gate refused it, which is a verdict and noted already."""
    from orchestration.freshening import Freshener
    from orchestration.freshness_steps import REFUSED

    ledger = Freshener(project).ledger
    if not any(one["kind"] == REFUSED and one["details"].get("run") == run_id for one in ledger.last_decisions(20)):
        ledger.record_decision(FAILED, message or "the run failed", {"run": run_id})
