"""Guards which tasks the sensor requests, and what is recorded when their runs end."""

from __future__ import annotations

import shutil

import pytest

from model_code.collection.generations.generation_store import set_default_retriever
from model_code.collection.ledger.states import LedgerView
from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind, TaskState
from model_code.collection.segments.solved import SolvedSummary
from orchestration import parameters
from orchestration.freshness import due_tasks as due_tasks_module
from orchestration.freshness.backlog import ingest_backlog
from orchestration.freshness.due_tasks import record_run_end, request_due_tasks
from tests.live_example import BASE, add, collection_of, make_project, open_build, receive, row

EVENTS = EventRange(1, 2)
LATER_EVENTS = EventRange(3, 4)


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def task_table(project):
    return collection_of(project).ledger.tasks


def request(project, kind, events=EVENTS):
    """Request a task as a drift check does."""
    return task_table(project).request(kind, "hce", events, "topics moved", requested_by="drift")


def request_drift_check(project):
    """Make ten documents searchable, so that a drift check is due."""
    parameters.write_overrides(project.params_file, ["drift.minimum_batch=10"])
    add(collection_of(project), *map(row, "abcdefghij"))
    (check,) = request_due_tasks(project)
    assert check.kind == TaskKind.DRIFT_CHECK
    assert check.event_range == EventRange(1, 10)
    return check


def due_kinds(project):
    return [task.kind for task in request_due_tasks(project)]


def due_keys(project):
    return [task.run_key for task in request_due_tasks(project)]


def search_another_retriever(project):
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")


def test_nothing_is_due_without_changes(project):
    assert request_due_tasks(project) == []


def test_nothing_is_due_if_nothing_is_live(project):
    shutil.rmtree(project.live)

    assert request_due_tasks(project) == []


def test_addition_is_due_while_changes_wait(project):
    receive(project, "a")

    (task,) = request_due_tasks(project)

    assert task.kind == TaskKind.ADD
    assert task.event_range == EventRange(1, 1)
    assert task.reason == "1 change is waiting"
    assert task.requested_by == "sensor"


def test_reason_counts_documents_with_queries(project):
    collection_of(project).receive([row("a", queries=["how"]), row("b")], "api")

    (task,) = request_due_tasks(project)

    assert task.reason == "2 changes are waiting; 1 brings queries, so IncDSI places it"


def test_reason_says_what_incdsi_did_so_far(project, monkeypatch):
    summary = SolvedSummary(3, 5, 2, 4, 0, 1)
    monkeypatch.setattr(due_tasks_module, "summarize_refinements", lambda generation: summary)
    receive(project, "plain")
    (plain,) = request_due_tasks(project)
    rows = [row("a", queries=["how"]), row("b", queries=["why"])]
    collection_of(project).receive(rows, "api")

    (task,) = request_due_tasks(project)

    assert plain.reason == "1 change is waiting"
    assert task.reason == (
        "3 changes are waiting; 2 bring queries, so IncDSI places them. "
        f"So far, {summary.sentence()}"
    )


def test_addition_is_requested_without_reading_events(project, monkeypatch):
    def fail(*_):
        pytest.fail("events were read, with their texts")

    receive(project, "a")
    monkeypatch.setattr(LedgerView, "pending", fail)

    assert due_kinds(project) == [TaskKind.ADD]


def test_repeated_request_returns_same_addition(project):
    receive(project, "a")
    (task,) = request_due_tasks(project)

    assert request_due_tasks(project) == [task]


def test_more_changes_replace_addition(project):
    receive(project, "a")
    (first,) = request_due_tasks(project)
    receive(project, "b")

    (second,) = request_due_tasks(project)

    assert second.event_range == EventRange(1, 2)
    assert second.id != first.id


def test_applied_changes_close_addition(project):
    receive(project, "a")
    request_due_tasks(project)
    collection_of(project).apply()

    assert request_due_tasks(project) == []
    (task,) = task_table(project).last("hce", 9)
    assert task.state == TaskState.DONE


@pytest.mark.parametrize("canceled", [False, True])
def test_failed_addition_is_tried_again_until_limit(project, canceled):
    receive(project, "a")
    for attempt in range(MAX_ATTEMPTS):
        (task,) = request_due_tasks(project)
        assert task.kind == TaskKind.ADD
        # The end of a run may be reported twice.
        for _ in range(2):
            record_run_end(project, task.run_key, f"run-{attempt}", "disk full", canceled)

    assert request_due_tasks(project) == []

    receive(project, "b")
    assert due_kinds(project) == [TaskKind.ADD]


@pytest.mark.parametrize("kind", [TaskKind.PILOT, TaskKind.RETRAIN])
def test_failed_task_is_tried_again_under_another_key(project, kind):
    request(project, kind)
    keys = []
    for attempt in range(MAX_ATTEMPTS):
        (task,) = request_due_tasks(project)
        assert task.kind == kind
        keys.append(task.run_key)
        for _ in range(2):
            record_run_end(project, task.run_key, f"run-{attempt}", "out of memory", canceled=False)

    assert len(set(keys)) == MAX_ATTEMPTS
    assert request_due_tasks(project) == []


@pytest.mark.parametrize("kind", [TaskKind.PILOT, TaskKind.RETRAIN])
def test_canceled_task_is_not_tried_again(project, kind):
    task = request(project, kind)
    assert task.attempts == 1

    record_run_end(project, task.run_key, "run-9", "the run was canceled", canceled=True)

    assert request_due_tasks(project) == []
    assert task_table(project).last("hce", 1)[0].state == TaskState.CANCELED


def test_task_after_failed_one_starts_with_first_attempt(project):
    failed = request(project, TaskKind.RETRAIN)
    record_run_end(project, failed.run_key, "run-1", "out of memory", canceled=False)

    assert request(project, TaskKind.RETRAIN, LATER_EVENTS).attempts == 1


def test_drift_check_with_too_few_documents_is_over(project):
    task_table(project).end(request_drift_check(project), TaskState.REFUSED, "too few")

    assert request_due_tasks(project) == []
    assert ingest_backlog(project).unmeasured == 0


def test_full_batch_after_refused_check_is_checked(project):
    task_table(project).end(request_drift_check(project), TaskState.REFUSED, "too few")

    add(collection_of(project), *map(row, "klmnopqrs"))
    assert request_due_tasks(project) == []
    assert ingest_backlog(project).unmeasured == 9

    add(collection_of(project), row("t"))
    (check,) = request_due_tasks(project)
    assert check.event_range == EventRange(11, 20)


def test_drift_check_of_another_retriever_is_closed(project):
    request_drift_check(project)
    search_another_retriever(project)
    collection_of(project, "other").apply()

    assert [task.retriever for task in request_due_tasks(project)] == ["other"]
    assert task_table(project).open("hce") == []


def test_drift_check_does_not_wait_for_another_retriever(project):
    """A retriever that cannot apply a change stays behind until the next change."""
    check = request_drift_check(project)
    open_build(project, BASE, retriever="other")

    tasks = request_due_tasks(project)

    assert [(task.kind, task.retriever) for task in tasks] == [
        (TaskKind.ADD, "other"),
        (TaskKind.DRIFT_CHECK, "hce"),
    ]
    assert tasks[-1] == check


def test_failure_is_recorded_once(project):
    task = request(project, TaskKind.RETRAIN)
    record_run_end(project, "", "run-2", "another job", canceled=False)
    record_run_end(project, task.run_key, "run-1", "out of memory", canceled=False)

    (failed,) = request_due_tasks(project)

    assert failed.attempts == 2


def test_rejection_is_not_recorded_as_failure(project):
    task = request(project, TaskKind.RETRAIN)
    task_table(project).close_retrains("hce", TaskState.REFUSED, "worse", {})

    record_run_end(project, task.run_key, "run-3", "the gate's check failed", canceled=False)

    (rejected,) = task_table(project).last("hce", 9)
    assert rejected.state == TaskState.REFUSED
    assert rejected.attempts == 1
    assert rejected.outcome == "worse"


def test_failure_is_recorded_for_retrained_retriever(project):
    task = request(project, TaskKind.RETRAIN)
    search_another_retriever(project)
    assert request_due_tasks(project) == []

    record_run_end(project, task.run_key, "run-1", "out of memory", canceled=False)

    assert [open_task.attempts for open_task in task_table(project).open("hce")] == [2]


def test_requested_retrain_replaces_pilot(project):
    request(project, TaskKind.PILOT)
    request(project, TaskKind.RETRAIN, LATER_EVENTS)

    assert due_kinds(project) == [TaskKind.RETRAIN]


def test_run_keys_differ_from_deleted_ledger(tmp_path, project):
    """Dagster starts no second run of a key, and its history outlives the ledger."""

    def request_addition_and_retrain(project):
        receive(project, "a")
        request(project, TaskKind.RETRAIN)
        assert due_kinds(project) == [TaskKind.ADD, TaskKind.RETRAIN]
        return set(due_keys(project))

    first_keys = request_addition_and_retrain(project)
    shutil.rmtree(project.live)
    second_keys = request_addition_and_retrain(make_project(tmp_path))

    assert not first_keys & second_keys
