"""What `freshet run` would do, and why, without doing it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestration import parameters
from orchestration.pipeline import dvc_lock, stages
from orchestration.pipeline.dvc_process import initialise, run_dvc
from orchestration.project import Project


@dataclass(frozen=True)
class PlannedStage:
    """A stage, whether it would run ("run", "skip", or "maybe" if that depends on a stage before it), and why."""

    address: str
    action: str
    reasons: tuple[str, ...]


def plan(project: Project, targets: Sequence[str] = ()) -> list[PlannedStage]:
    """Every stage in order of running, with its action and reasons; of `targets` and what they need, if given."""
    initialise(project)
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    ran, status = dvc_lock.stages_that_ran(project.root), _dvc_status(project)
    planned: dict[str, PlannedStage] = {}
    for stage in _needed(table, targets):
        before = [planned[other.address] for other in stages.upstream(stage, table) if other.address in planned]
        changes = status.get(stage.address, []) if stage.address in ran else ["it never ran"]
        planned[stage.address] = _plan_one(stage.address, changes, before)
    return list(planned.values())


def before(project: Project, address: str) -> list[str]:
    """A stage and all that it depends on, in order of running."""
    settings = parameters.load(project.params_file)
    return [stage.address for stage in _needed(stages.expand(settings.retrievers, settings.fusions), [address])]


def _needed(table: Sequence[stages.Stage], targets: Sequence[str]) -> list[stages.Stage]:
    if not targets:
        return list(table)
    wanted = {stage.address for target in targets for stage in stages.find(target, table)}
    for stage in reversed(table):
        if stage.address in wanted:
            wanted |= {other.address for other in stages.upstream(stage, table)}
    return [stage for stage in table if stage.address in wanted]


def _plan_one(address: str, changes: list[str], before: list[PlannedStage]) -> PlannedStage:
    moving = [other.address for other in before if other.action != "skip"]
    # an artifact that is missing or changed is no reason where a stage before this one is about to write it anyway
    written = ("deleted artifacts/", "modified artifacts/") if moving else ()
    reasons = tuple(change for change in changes if not change.startswith(written))
    if reasons:
        return PlannedStage(address, "run", reasons)
    if moving:
        return PlannedStage(address, "maybe", tuple(f"{other} may change its output" for other in moving))
    return PlannedStage(address, "run" if changes else "skip", tuple(changes))


def _dvc_status(project: Project) -> dict[str, list[str]]:
    status = json.loads(run_dvc(project, "--wait-for-lock", "status", "--json").stdout or "{}")
    return {address: [line for entry in entries for line in _describe(entry)] for address, entries in status.items()}


def _describe(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    lines = []
    for kind, what in entry.items():
        for path, change in what.items():
            if isinstance(change, dict):
                lines += [f"{value} setting {key}" for key, value in change.items()]
            else:
                lines.append(f"{change} {path}" if kind == "changed deps" else f"{change} output {path}")
    return lines
