"""The project's own Dagster home, telemetry off and one slot per pool, and its runs that nobody
ends any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from model_code.settings import require

CONFIG = """\
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {pools: {default_limit: 1, granularity: op}}
# nothing else frees the slot of a run that was killed: its pool would be closed for good
run_monitoring: {enabled: true, free_slots_after_run_end_seconds: 60}
"""
LOCATION = "freshet"  # of the code, as Dagster names it
DATABASE = "FRESHET_DAGSTER_DATABASE"
CLOCK = 60.0  # seconds by which the time of a process's start may be off, as clocks are set
GONE = "its process is gone: this machine or Dagster's daemon was stopped while it ran"
DRIVER = "postgresql+psycopg2://"
STORAGE = f"storage: {{postgres: {{postgres_url: {{env: {DATABASE}}}}}}}\n"


def dagster_home(project: Project) -> Path:
    """The folder, with its `dagster.yaml`; made and initialised at the first call, under the
    project's lock.

    Runs and events lie in it, or in the PostgreSQL database at the environment's
    `FRESHET_DAGSTER_DATABASE`, whose address is not written down. FreshetError if the folder was
    made for the other one. Two processes that initialise a fresh home at once leave its database
    with two schema heads.
    """
    require(
        os.environ.get(DATABASE, DRIVER).startswith(DRIVER),
        f"{DATABASE} must begin with {DRIVER}: with SQLAlchemy's other drivers Dagster's own SQL fails",
    )
    home = project.state / "dagster"
    if not (home / "dagster.yaml").exists():
        with project.lock():
            write_text(home / "dagster.yaml", CONFIG + (STORAGE if DATABASE in os.environ else ""))
            with dg.DagsterInstance.from_config(str(home)) as instance:
                instance.get_runs(limit=1)
                instance.fetch_materializations(dg.AssetKey("any"), limit=1)
    made_for, is_set = (
        STORAGE in (home / "dagster.yaml").read_text(encoding="utf-8"),
        DATABASE in os.environ,
    )
    if made_for != is_set:
        raise FreshetError(
            f"{home / 'dagster.yaml'} was made {'with' if made_for else 'without'} {DATABASE}, which is "
            f"{'' if is_set else 'not '}set now: change the environment back, or delete that file for a new history"
        )
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def open_instance(project: Project) -> dg.DagsterInstance:
    """The project's persistent instance, to run jobs in."""
    return dg.DagsterInstance.from_config(str(dagster_home(project)))


@contextmanager
def known_by_the_page(instance: dg.DagsterInstance, job: str) -> Iterator[None]:
    """Let runs made inside belong to `job` as `freshet ui` has it loaded, else its first page
    leaves them out.
    """
    origin = RemoteRepositoryOrigin(
        RegisteredCodeLocationOrigin(LOCATION), "__repository__"
    ).get_job_origin(job)
    make = instance.create_run_for_job
    # execute_in_process has no argument for it
    instance.create_run_for_job = partial(make, remote_job_origin=origin)
    try:
        yield
    finally:
        instance.create_run_for_job = make


def fail_abandoned_runs(project: Project) -> list[str]:
    """Mark as failed what is in progress for Dagster and whose process has ended; the ids of these
    runs.

    Their slots are free at once, as a build waits for them without an end; a retrain among them is
    tried again. In a database that several machines share nothing is done: a process of another
    machine cannot be looked for.
    """
    gone: list[str] = []
    if DATABASE in os.environ:
        return gone
    with open_instance(project) as instance:
        for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            starts = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)
            if not any(
                _is_running(start.get_dagster_event().pid, start.timestamp) for start in starts
            ):
                instance.report_run_failed(run, GONE)
                instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
                gone.append(run.run_id)
    return gone


def _is_running(pid: int, moment: float) -> bool:
    """Whether the process `pid` of that moment still runs, and not another one that has its number
    now.
    """
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < moment + CLOCK
    except psutil.NoSuchProcess:
        return False
