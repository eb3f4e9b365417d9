"""Guards that a killed run of Dagster frees its pool, and that Dagster's pages show runs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._daemon.monitoring import execute_concurrency_slots_iteration

from model_code.project import Project
from orchestration.instance import DATABASE, fail_abandoned_runs, open_instance, show_runs_in_ui

POOL = "live_writer"


@pytest.fixture
def project(tmp_path, monkeypatch):
    # `dagster_home` sets this variable, which is restored after the test.
    monkeypatch.setenv("DAGSTER_HOME", "")
    return Project(tmp_path)


@dg.op(pool=POOL)
def pool_op():
    pass


@dg.job
def pool_job():
    pool_op()


def claim_slot(instance, run_id):
    return instance.event_log_storage.claim_concurrency_slot(POOL, run_id, "step").is_claimed


def start_run(instance, pid):
    """Start a run in the process `pid`, which holds the only slot of its pool."""
    run = instance.create_run_for_job(pool_job)
    event = dg.DagsterEvent(
        dg.DagsterEventType.RUN_START.value, job_name=run.job_name, message="started", pid=pid
    )
    instance.report_dagster_event(event, run.run_id)
    instance.event_log_storage.initialize_concurrency_limit_to_default(POOL)
    assert claim_slot(instance, run.run_id)
    return run.run_id


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def status(instance, run_id):
    return instance.get_run_by_id(run_id).status


def test_run_without_process_is_failed(project):
    with open_instance(project) as instance:
        run_id = start_run(instance, ended_process())
        assert not claim_slot(instance, "another")

    assert fail_abandoned_runs(project) == [run_id]

    with open_instance(project) as instance:
        assert status(instance, run_id) == DagsterRunStatus.FAILURE
        assert claim_slot(instance, "another")


def test_failed_run_frees_slot_after_a_minute(project, monkeypatch):
    with open_instance(project) as instance:
        run_id = start_run(instance, os.getpid())
        instance.report_run_failed(instance.get_run_by_id(run_id))
        assert instance.run_monitoring_enabled
        settings = instance.run_monitoring_settings
        assert settings["free_slots_after_run_end_seconds"] == 60

        monkeypatch.setitem(settings, "free_slots_after_run_end_seconds", 0.001)
        context = SimpleNamespace(instance=instance)
        list(execute_concurrency_slots_iteration(context, logging.getLogger()))

        assert claim_slot(instance, "another")


def test_run_with_process_goes_on(project):
    with open_instance(project) as instance:
        run_id = start_run(instance, os.getpid())

    assert fail_abandoned_runs(project) == []

    with open_instance(project) as instance:
        assert status(instance, run_id) == DagsterRunStatus.STARTED


def test_later_process_with_same_number_does_not_count(project, monkeypatch):
    """After a restart of the machine, numbers of processes are given again."""
    with open_instance(project) as instance:
        run_id = start_run(instance, os.getpid())
    monkeypatch.setattr("orchestration.instance.CLOCK_TOLERANCE_SECONDS", -1e6)

    assert fail_abandoned_runs(project) == [run_id]


def test_runs_in_shared_database_are_not_failed(project, monkeypatch):
    monkeypatch.setenv(DATABASE, "postgresql+psycopg2://nowhere/dagster")

    assert fail_abandoned_runs(project) == []


def test_runs_belong_to_job_of_the_ui():
    with dg.DagsterInstance.ephemeral() as instance:
        with show_runs_in_ui(instance, "pool_job"):
            run_id = pool_job.execute_in_process(instance=instance).run_id
        run = instance.get_run_by_id(run_id)
        later_run = pool_job.execute_in_process(instance=instance).dagster_run

    label = run.remote_job_origin.repository_origin.get_label()
    assert label == "__repository__@freshet"
    assert later_run.remote_job_origin is None
