"""The project's Dagster instance: its home folder, and the runs whose process has ended.

The configuration switches telemetry off. In each pool, Dagster's limit on concurrent steps, it
lets one step run at a time.
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
# Nothing else frees the slot of a killed run, and its pool would be blocked for good.
run_monitoring: {enabled: true, free_slots_after_run_end_seconds: 60}
"""
# The name of the code location, as Dagster shows it.
LOCATION = "freshet"
# The environment variable with the address of a PostgreSQL database.
DATABASE = "FRESHET_DAGSTER_DATABASE"
DRIVER = "postgresql+psycopg2://"
STORAGE_CONFIG = f"storage: {{postgres: {{postgres_url: {{env: {DATABASE}}}}}}}\n"
# A corrected system clock can make a process seem to start after its run, by at most so many
# seconds.
CLOCK_TOLERANCE_SECONDS = 60.0
ABANDONED = "its process is gone: this machine or Dagster's daemon stopped while it ran"


def dagster_home(project: Project) -> Path:
    """Return the project's Dagster home, and set `DAGSTER_HOME` to it.

    Runs and events are stored in it, or in the PostgreSQL database of the environment variable
    `FRESHET_DAGSTER_DATABASE`, whose address is not written to disk. The first call makes the
    folder under the project's lock. Two processes that make it at the same time would note two
    versions of the database schema, where Dagster expects one.

    Raises:
        SettingsError: If the address needs another driver.
        FreshetError: If the folder was made for the other kind of storage.
    """
    uses_database = DATABASE in os.environ
    require(
        os.environ.get(DATABASE, DRIVER).startswith(DRIVER),
        f"{DATABASE} must begin with {DRIVER}: Dagster's SQL "
        "fails with other drivers of SQLAlchemy",
    )

    home = project.state / "dagster"
    config = home / "dagster.yaml"
    if not config.exists():
        with project.lock():
            storage = STORAGE_CONFIG if uses_database else ""
            write_text(config, CONFIG + storage)
            _initialize_storage(home)

    was_made_for_database = STORAGE_CONFIG in config.read_text(encoding="utf-8")
    if was_made_for_database and not uses_database:
        raise FreshetError(
            f"{config} was made with {DATABASE}, which is not set now: "
            "set it again, or delete that file for a new history"
        )
    if uses_database and not was_made_for_database:
        raise FreshetError(
            f"{config} was made without {DATABASE}, which is set now: "
            "unset it, or delete that file for a new history"
        )

    os.environ["DAGSTER_HOME"] = str(home)
    return home


def _initialize_storage(home: Path) -> None:
    """Create the database tables of runs and events. Dagster creates each at its first query."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs(limit=1)
        instance.fetch_materializations(dg.AssetKey("any"), limit=1)


def open_instance(project: Project) -> dg.DagsterInstance:
    """Open the project's persistent instance, to run jobs in it."""
    return dg.DagsterInstance.from_config(str(dagster_home(project)))


@contextmanager
def show_runs_in_ui(instance: dg.DagsterInstance, job: str) -> Iterator[None]:
    """Make runs that are created inside belong to the job that `freshet ui` loads.

    Otherwise the first page of Dagster's UI does not show them.
    """
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(LOCATION), "__repository__")
    origin = repository.get_job_origin(job)

    # The job's origin tells the UI which job a run belongs to. `execute_in_process` cannot pass it
    # on, so the method that it calls is replaced meanwhile.
    create_run = instance.create_run_for_job
    instance.create_run_for_job = partial(create_run, remote_job_origin=origin)
    try:
        yield
    finally:
        instance.create_run_for_job = create_run


def fail_abandoned_runs(project: Project) -> list[str]:
    """Mark abandoned runs as failed: Dagster shows them in progress, but their process has ended.

    Dagster lets one step of a pool run at a time, and an abandoned run still counts. It is taken
    out of its pool, because a build would wait for it without end. An abandoned retrain is tried
    again. Nothing is done if several machines share a database, because a process of another
    machine cannot be looked up.

    Returns:
        The ids of the runs that were marked.
    """
    if DATABASE in os.environ:
        return []

    abandoned = []
    with open_instance(project) as instance:
        in_progress = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
        for run in instance.get_runs(in_progress):
            if _has_running_process(instance, run.run_id):
                continue
            instance.report_run_failed(run, ABANDONED)
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            abandoned.append(run.run_id)
    return abandoned


def _has_running_process(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a process of a run still runs. A run may have been started several times."""
    for start in instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_START):
        pid = start.get_dagster_event().pid
        if _is_running(pid, start.timestamp):
            return True
    return False


def _is_running(pid: int, run_start: float) -> bool:
    """Return whether the process of a run still runs.

    The system reuses the ids of processes. A process that was started after the run is another one.

    Args:
        pid: Id of the process.
        run_start: Time at which the run started, in seconds since 1970.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() < run_start + CLOCK_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return False
