"""Guards that a run of Dagster that was killed gives its pool back, at once or after a restart of
everything.
"""

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
from orchestration.instance import DATABASE, fail_abandoned_runs, known_by_the_page, open_instance

POOL = "live_writer"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", "")  # which `dagster_home` sets
    return Project(tmp_path)


@dg.op(pool=POOL)
def one():
    pass


@dg.job
def some_job():
    one()


def start(instance, pid=None):
    """A run that process `pid` works on, and that holds the only slot of its pool."""
    run = instance.create_run_for_job(some_job)
    kind, pid = dg.DagsterEventType.RUN_START.value, pid or os.getpid()
    event = dg.DagsterEvent(kind, job_name=run.job_name, message="started", pid=pid)
    instance.report_dagster_event(event, run.run_id)
    instance.event_log_storage.initialize_concurrency_limit_to_default(POOL)
    assert instance.event_log_storage.claim_concurrency_slot(POOL, run.run_id, "one").is_claimed
    return run.run_id


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def status(instance, run_id):
    return instance.get_run_by_id(run_id).status


def test_a_run_whose_process_is_gone_is_failed_and_its_slot_is_free(project):
    with open_instance(project) as instance:
        run_id = start(instance, ended_process())
        assert not instance.event_log_storage.claim_concurrency_slot(
            POOL, "another", "one"
        ).is_claimed
    assert fail_abandoned_runs(project) == [run_id]
    with open_instance(project) as instance:
        assert status(instance, run_id) == DagsterRunStatus.FAILURE
        assert instance.event_log_storage.claim_concurrency_slot(POOL, "another", "one").is_claimed


def test_the_slot_of_a_run_that_dagster_has_failed_is_free_a_minute_later(project, monkeypatch):
    with open_instance(project) as instance:
        instance.report_run_failed(instance.get_run_by_id(start(instance)))
        assert instance.run_monitoring_enabled
        seconds = instance.run_monitoring_settings["free_slots_after_run_end_seconds"]
        assert seconds == 60
        monkeypatch.setitem(
            instance.run_monitoring_settings, "free_slots_after_run_end_seconds", 0.001
        )
        list(
            execute_concurrency_slots_iteration(
                SimpleNamespace(instance=instance), logging.getLogger()
            )
        )
        assert instance.event_log_storage.claim_concurrency_slot(POOL, "another", "one").is_claimed


def test_a_run_whose_process_lives_goes_on_unless_its_number_is_another_s(project, monkeypatch):
    """After a restart of the machine numbers are given out anew."""
    with open_instance(project) as instance:
        run_id = start(instance)
    assert fail_abandoned_runs(project) == []
    with open_instance(project) as instance:
        assert status(instance, run_id) == DagsterRunStatus.STARTED
    monkeypatch.setattr("orchestration.instance.CLOCK", -1e6)
    assert fail_abandoned_runs(project) == [run_id]


def test_in_a_shared_database_no_run_is_touched(project, monkeypatch):
    monkeypatch.setenv(DATABASE, "postgresql+psycopg2://nowhere/dagster")
    assert fail_abandoned_runs(project) == []


def test_a_run_of_this_process_belongs_to_the_job_that_the_page_has_loaded(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        with known_by_the_page(instance, "some_job"):
            run_id = some_job.execute_in_process(instance=instance).run_id
        label = instance.get_run_by_id(run_id).remote_job_origin.repository_origin.get_label()
        assert label == "__repository__@freshet"
        assert some_job.execute_in_process(instance=instance).dagster_run.remote_job_origin is None
