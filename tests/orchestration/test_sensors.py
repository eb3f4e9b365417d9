"""Guards what Dagster knows of freshness: what the sensor vouches for, what it asks for, and the
schedule of a sync.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from assets.live import MEASURED, SEARCHABLE, SYNCED
from model_code.collection.sync import sync as syncing
from orchestration.freshness.due_tasks import record_run_end
from orchestration.sensors import notices
from tests.live_example import collection_of, make_project, receive
from tests.orchestration.dagster_page import Page, at


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def test_the_sensor_vouches_while_nothing_waits_and_the_policy_fails_when_it_no_longer_does(
    project,
):
    start = datetime.now(UTC)
    with dg.DagsterInstance.ephemeral() as instance:
        page = Page(project, instance)
        assert (page.state(SEARCHABLE), len(page.look().asset_events)) == ("UNKNOWN", 2)
        assert page.look().asset_events == [], "not at each look: the log would fill"
        receive(project, "a")
        for minutes, state in ((1, "PASS"), (8, "WARN"), (11, "FAIL")):
            with at(start + timedelta(minutes=minutes)):
                assert [event.asset_key for event in page.look().asset_events] == []
                assert page.state(SEARCHABLE) == state
                assert page.state(MEASURED) == "PASS"
        collection_of(project).apply()
        with at(start + timedelta(minutes=12)):
            (event,) = page.look().asset_events
            assert (event.asset_key, event.metadata["waiting"].value) == (SEARCHABLE, 0)
            assert page.state(SEARCHABLE) == "PASS"
        with at(start + timedelta(minutes=80)):  # nobody looked: the sensor is dead
            assert page.state(MEASURED) == "FAIL"
            shown = notices(dg.build_sensor_context(instance), project=project).skip_message
            assert "measured_drift: not fresh since" in shown
            assert "searchable" not in shown, "its last state was good"


def test_a_damaged_generation_is_told(project):
    receive(project, "a")
    generation = collection_of(project).apply().generation
    (generation.folder / "manifest.json").write_text("torn")
    with dg.DagsterInstance.ephemeral() as instance:
        assert "hce: " in notices(dg.build_sensor_context(instance), project=project).skip_message


def test_what_a_service_made_searchable_is_looked_at_for_drift_and_asked_for_once(project):
    with dg.DagsterInstance.ephemeral() as instance:
        page = Page(project, instance, "drift.minimum_batch=10")
        for names in ("abcdefgh", "ij"):
            receive(project, *names)
            collection_of(project).apply()
            found = page.look()
        (request,) = found.run_requests
        assert (request.job_name, request.partition_key) == ("look_at_drift", request.run_key)
        assert [each.partition_keys for each in found.dynamic_partitions_requests] == [
            [request.partition_key]
        ]
        assert MEASURED not in [event.asset_key for event in found.asset_events]
        assert [each.run_key for each in page.look().run_requests] == [request.run_key]
        collection_of(project).ledger.record_drift_report({"report": {}}, (1, 10))
        assert page.look().run_requests == []


def test_a_look_at_drift_that_failed_is_tried_again_three_times_at_most(project, monkeypatch):
    monkeypatch.setattr("orchestration.freshness.drift.check_drift", lambda project: 1 / 0)
    receive(project, *"abcdefghij")
    collection_of(project).apply()
    keys = []
    with dg.DagsterInstance.ephemeral() as instance:
        page = Page(project, instance, "drift.minimum_batch=10")
        for request in (request for _ in range(5) for request in page.look().run_requests):
            keys.append(request.run_key)
            assert not page.run(request.job_name, request.partition_key).success
            record_run_end(
                project, request.partition_key, "run", "division by zero", canceled=False
            )
        assert len(set(keys)) == len(keys) == 3
        receive(project, *"klmnopqrst")
        collection_of(project).apply()
        assert len(page.look().run_requests) == 1, "with as many more it is another one"


def test_a_schedule_has_the_index_follow_its_source_and_one_that_stopped_is_stale(
    project, monkeypatch
):
    monkeypatch.setattr(syncing, "sync", lambda live: syncing.SyncReport(added=["a"], unchanged=2))
    start = datetime.now(UTC).replace(minute=0, second=5)
    with dg.DagsterInstance.ephemeral() as instance:
        page = Page(project, instance, "live.sync=0 * * * *")
        (schedule,) = page.repository.schedule_defs
        context = dg.build_schedule_context(
            instance, repository_def=page.repository, scheduled_execution_time=start
        )
        assert len(schedule.evaluate_tick(context).run_requests) == 1
        with at(start):
            done = page.repository.get_job(schedule.job_name).execute_in_process(instance=instance)
        (event,) = done.get_asset_materialization_events()
        assert event.materialization.metadata["added"].value == 1
        for hours, state in ((0.9, "PASS"), (1.1, "PASS"), (2.1, "FAIL")):
            with at(start + timedelta(hours=hours)):
                assert page.state(SYNCED) == state


def test_without_a_setting_nothing_is_scheduled_and_where_nothing_is_live_nothing_is_synced(
    tmp_path, project
):
    with dg.DagsterInstance.ephemeral() as instance:
        assert Page(project, instance).repository.schedule_defs == []
        page = Page(project, instance, "live.sync=0 * * * *")
        (tmp_path / "live" / "hce").rename(tmp_path / "elsewhere")
        context = dg.build_schedule_context(instance, repository_def=page.repository)
        assert page.repository.schedule_defs[0].evaluate_tick(context).run_requests == []
        assert page.look().asset_events == []
