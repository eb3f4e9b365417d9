"""Guards which runs the sensors start, which assets they report, and the schedule of a sync."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from assets.live import MEASURED, SEARCHABLE, SYNCED
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import MAX_ATTEMPTS
from model_code.collection.sync import sync as sync_module
from orchestration.freshness.due_tasks import record_run_end, request_due_tasks
from orchestration.sensors import notices
from tests.live_example import collection_of, make_project, receive
from tests.orchestration.dagster_page import Page, at


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def make_searchable(project, *document_ids):
    receive(project, *document_ids)
    collection_of(project).apply()


def reported_keys(result):
    return [event.asset_key for event in result.asset_events]


def test_fresh_assets_are_reported_at_intervals(project, instance):
    page = Page(project, instance)
    assert page.state(SEARCHABLE) == "UNKNOWN"

    assert reported_keys(page.look()) == [SEARCHABLE, MEASURED]
    # Reporting at each tick would fill the event log.
    assert reported_keys(page.look()) == []


def test_policy_fails_while_document_waits(project, instance):
    start = datetime.now(UTC)
    page = Page(project, instance)
    page.look()
    receive(project, "a")

    for minutes, state in ((1, "PASS"), (8, "WARN"), (11, "FAIL")):
        with at(start + timedelta(minutes=minutes)):
            assert reported_keys(page.look()) == []
            assert page.state(SEARCHABLE) == state
            assert page.state(MEASURED) == "PASS"


def test_policy_passes_again_after_addition(project, instance):
    start = datetime.now(UTC)
    page = Page(project, instance)
    page.look()
    receive(project, "a")
    with at(start + timedelta(minutes=11)):
        page.look()
        assert page.state(SEARCHABLE) == "FAIL"

    collection_of(project).apply()

    with at(start + timedelta(minutes=12)):
        (event,) = page.look().asset_events
        assert event.asset_key == SEARCHABLE
        assert event.metadata["waiting"].value == 0
        assert page.state(SEARCHABLE) == "PASS"


def test_policy_fails_if_sensor_does_not_run(project, instance):
    start = datetime.now(UTC)
    page = Page(project, instance)
    page.look()
    with at(start + timedelta(minutes=1)):
        assert page.state(SEARCHABLE) == "PASS"

    with at(start + timedelta(minutes=80)):
        assert page.state(MEASURED) == "FAIL"
        context = dg.build_sensor_context(instance)
        shown = notices(context, project=project).skip_message

    assert "measured_drift: not fresh since" in shown
    # The daemon judged this policy last when it passed.
    assert "searchable" not in shown


def test_damaged_generation_is_a_problem(project, instance):
    receive(project, "a")
    generation = collection_of(project).apply().generation
    (generation.folder / "manifest.json").write_text("torn")

    context = dg.build_sensor_context(instance)
    shown = notices(context, project=project).skip_message

    assert "hce: " in shown


def test_drift_check_is_requested_for_unmeasured_documents(project, instance):
    page = Page(project, instance, "drift.minimum_batch=10")
    make_searchable(project, *"abcdefgh")
    page.look()
    make_searchable(project, *"ij")

    result = page.look()

    (request,) = result.run_requests
    assert request.job_name == "check_drift"
    assert request.partition_key == request.run_key
    (partitions,) = result.dynamic_partitions_requests
    assert partitions.partition_keys == [request.partition_key]
    assert MEASURED not in reported_keys(result)


def test_drift_check_is_requested_until_reported(project, instance):
    page = Page(project, instance, "drift.minimum_batch=10")
    make_searchable(project, *"abcdefghij")
    (first,) = page.look().run_requests
    (second,) = page.look().run_requests
    assert second.run_key == first.run_key

    collection_of(project).ledger.record_drift_report({"report": {}}, (1, 10))

    assert page.look().run_requests == []


def test_tick_states_what_the_last_check_held_back(project, instance):
    page = Page(project, instance, "drift.minimum_batch=10")
    make_searchable(project, *"abcdefghij")
    decision = {"action": "no action", "wanted": "retrain", "reasons": ["a", "held back: b"]}

    collection_of(project).ledger.record_drift_report({"decision": decision}, (1, 10))

    assert page.look().skip_reason.skip_message.endswith("is due; retrain held back: b")


def test_failed_drift_check_is_tried_three_times(project, instance, monkeypatch):
    def fail(project):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("orchestration.freshness.drift.check_drift", fail)
    make_searchable(project, *"abcdefghij")
    page = Page(project, instance, "drift.minimum_batch=10")

    run_keys = []
    for _ in range(5):
        for request in page.look().run_requests:
            run_keys.append(request.run_key)
            assert not page.run(request.job_name, request.partition_key).success
            record_run_end(
                project, request.partition_key, "run", "division by zero", canceled=False
            )
    assert len(run_keys) == 3
    assert len(set(run_keys)) == 3

    # Another full batch is another task.
    make_searchable(project, *"klmnopqrst")
    assert len(page.look().run_requests) == 1


def test_schedule_syncs_source(project, instance, monkeypatch):
    start = datetime.now(UTC).replace(minute=0, second=5)
    page = Page(project, instance, "live.sync=0 * * * *")
    (schedule,) = page.repository.schedule_defs

    def sync(live, **options):
        return sync_module.SyncReport(added=["a"], unchanged=2)

    monkeypatch.setattr(sync_module, "sync", sync)
    context = dg.build_schedule_context(
        instance, repository_def=page.repository, scheduled_execution_time=start
    )
    assert len(schedule.evaluate_tick(context).run_requests) == 1

    with at(start):
        run = page.repository.get_job(schedule.job_name).execute_in_process(instance=instance)
    (event,) = run.get_asset_materialization_events()
    assert event.materialization.metadata["added"].value == 1

    for hours, state in ((0.9, "PASS"), (1.1, "PASS"), (2.1, "FAIL")):
        with at(start + timedelta(hours=hours)):
            assert page.state(SYNCED) == state


def test_no_schedule_without_setting(project, instance):
    assert Page(project, instance).repository.schedule_defs == []


def test_schedule_is_skipped_if_nothing_is_live(tmp_path, project, instance):
    page = Page(project, instance, "live.sync=0 * * * *")
    (tmp_path / "live" / "hce").rename(tmp_path / "elsewhere")

    (schedule,) = page.repository.schedule_defs
    context = dg.build_schedule_context(instance, repository_def=page.repository)

    assert schedule.evaluate_tick(context).run_requests == []
    assert page.look().asset_events == []


def test_tick_states_that_work_is_running(project, instance):
    page = Page(project, instance, "drift.minimum_batch=10")
    receive(project, "a")
    (request,) = page.look().run_requests
    instance.create_run_for_job(
        dg.job(name="add_documents")(lambda: None),
        tags={"dagster/run_key": request.run_key},
        status=dg.DagsterRunStatus.STARTED,
    )

    result = page.look()

    assert result.run_requests == []
    assert "add_documents: run " in result.skip_reason.skip_message
    assert " is started (1 change is waiting)" in result.skip_reason.skip_message


def test_failed_run_of_failed_task_is_told_once(project, instance):
    receive(project, "a")
    run = instance.create_run_for_job(
        dg.job(name="add_documents")(lambda: None), status=dg.DagsterRunStatus.FAILURE
    )
    for _ in range(MAX_ATTEMPTS):
        (task,) = request_due_tasks(project)
        with open_ledger(project) as ledger:
            ledger.tasks.fail(task, "the disk is full", run.run_id)

    shown = notices(dg.build_sensor_context(instance), project=project).skip_message

    assert shown.count("the disk is full") == 1
    assert "run " + run.run_id[:8] not in shown
