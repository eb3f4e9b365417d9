"""Runs of Dagster that a power cut or a killed daemon left in progress: nobody else ends them, and they hold slots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil

from orchestration.instance import DATABASE, open_instance
from orchestration.project import Project

if TYPE_CHECKING:
    import dagster as dg

CLOCK = 60.0  # seconds by which the time of a process's start may be off, as clocks are set
GONE = "its process is gone: this machine or Dagster's daemon was stopped while it ran"


def fail_abandoned_runs(project: Project) -> list[str]:
    """Mark as failed what is in progress for Dagster and whose process has ended; the ids of these runs.

    Their slots are freed a minute later, and a retrain among them is tried again. In a database that several machines
    share nothing is done: a process of another machine cannot be looked for.
    """
    if DATABASE in os.environ:
        return []
    with open_instance(project) as instance:
        return _fail_abandoned(instance)


def _fail_abandoned(instance: dg.DagsterInstance) -> list[str]:
    import dagster as dg

    started = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    gone = [run for run in started if not any(_runs(*one) for one in _starts(instance, run.run_id))]
    for run in gone:
        instance.report_run_failed(run, GONE)
    return [run.run_id for run in gone]


def _starts(instance: dg.DagsterInstance, run_id: str) -> Iterator[tuple[int, float]]:
    """The process that works on a run, by its id, and when (seconds since 1970) it began."""
    from dagster import DagsterEventType

    for entry in instance.all_logs(run_id, of_type=DagsterEventType.RUN_START):
        yield entry.get_dagster_event().pid, entry.timestamp


def _runs(pid: int, moment: float) -> bool:
    """Whether the process `pid` of that moment still runs, and not another one that has its number now."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < moment + CLOCK
    except psutil.NoSuchProcess:
        return False
