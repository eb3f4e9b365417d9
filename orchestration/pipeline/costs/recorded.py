"""What MLflow remembers of the stages that made a build: how long they took and how much memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestration.pipeline import stage_key
from orchestration.pipeline.stages import Stage
from orchestration.project import Project
from orchestration.registry.mlflow_tracker import MlflowTracker
from orchestration.registry.spool import record_all
from orchestration.registry.tracking import store_folder, tracking_uri


@dataclass(frozen=True)
class StageCost:
    """Wall time, and the most memory that the stage's process held."""

    seconds: float
    memory_mb: float


def stage_costs(project: Project, stages: Iterable[Stage]) -> dict[str, StageCost]:
    """The cost of each stage by its address, where a run of the same code, inputs and settings is recorded.

    What is spooled is recorded first.
    """
    record_all(project)
    tracker = MlflowTracker(tracking_uri(project), store_folder(project))
    costs = {}
    for stage in stages:
        run = tracker.find_run(stage_key.read(stage, project.root).key) if _has_inputs(stage, project) else None
        if run is not None:
            metrics = tracker.client.get_run(run).data.metrics
            costs[stage.address] = StageCost(metrics["seconds"], metrics["peak_memory_mb"])
    return costs


def _has_inputs(stage: Stage, project: Project) -> bool:
    return all((project.root / path).exists() for path in stage.inputs.values())
