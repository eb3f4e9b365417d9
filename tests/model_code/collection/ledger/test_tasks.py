"""Tests of the tasks table: a task is requested once, tried a few times, and closed once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from model_code.collection.ledger.database import Database, open_database
from model_code.collection.ledger.tasks import (
    MAX_ATTEMPTS,
    EventRange,
    Task,
    TaskKind,
    TaskState,
    TaskTable,
    table,
)

FIRST_BATCH = EventRange(1, 24)
SECOND_BATCH = EventRange(25, 48)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def tasks(database: Database) -> TaskTable:
    return TaskTable(database)


def request(
    tasks: TaskTable,
    kind: TaskKind = TaskKind.RETRAIN,
    event_range: EventRange = FIRST_BATCH,
    retriever: str = "hce",
) -> Task | None:
    return tasks.request(kind, retriever, event_range, "topics moved", requested_by="drift")


def kinds_and_states(tasks: TaskTable, retriever: str = "hce") -> list[tuple[TaskKind, TaskState]]:
    """Newest first."""
    return [(task.kind, task.state) for task in tasks.last(retriever, 9)]


def test_requested_task_is_open(tasks):
    task = request(tasks)

    assert task.kind == TaskKind.RETRAIN
    assert task.state == TaskState.OPEN
    assert task.event_range == FIRST_BATCH
    assert task.attempts == 1
    assert tasks.open() == [task]


def test_tasks_are_found_by_retriever_and_kind(tasks):
    task = request(tasks)

    assert tasks.open("hce") == [task]
    assert tasks.open("hce", TaskKind.RETRAIN) == [task]
    assert tasks.last("hce", 1) == [task]
    assert tasks.open("other") == []
    assert tasks.open("hce", TaskKind.ADD) == []


def test_task_is_found_by_run_key(tasks):
    task = request(tasks)

    assert tasks.find_by_run_key(task.run_key) == task
    assert tasks.find_by_run_key(f"retrain-{task.id}-2") is None


def test_same_request_returns_same_task(tasks):
    assert request(tasks) == request(tasks)


def test_other_events_retrievers_and_kinds_are_other_tasks(tasks):
    requested = [
        request(tasks),
        request(tasks, event_range=SECOND_BATCH),
        request(tasks, retriever="other"),
        request(tasks, TaskKind.ADD),
    ]

    assert len({task.id for task in requested}) == 4


def test_concurrent_requests_open_one_task(tasks):
    requested = []
    threads = [threading.Thread(target=lambda: requested.append(request(tasks))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(requested) == 4
    assert len({task.id for task in requested}) == 1
    assert len(tasks.open()) == 1


def test_failed_task_is_retried_until_limit(tasks):
    request(tasks)
    run_keys = []
    for _ in range(MAX_ATTEMPTS):
        (task,) = tasks.open()
        run_keys.append(task.run_key)
        tasks.fail(task, "disk full", "run")
        # The failure of one attempt may be reported twice.
        assert tasks.find_by_run_key(task.run_key) is None

    assert len(set(run_keys)) == MAX_ATTEMPTS
    assert tasks.open() == []
    assert kinds_and_states(tasks) == [(TaskKind.RETRAIN, TaskState.FAILED)]


def test_finally_failed_task_is_not_requested_again(tasks):
    request(tasks)
    for _ in range(MAX_ATTEMPTS):
        tasks.fail(*tasks.open(), "disk full")

    assert request(tasks) is None
    assert request(tasks, event_range=SECOND_BATCH) is not None


def test_closed_task_stays_closed(tasks):
    task = request(tasks, TaskKind.ADD)
    tasks.end(task, TaskState.DONE, "applied", "run-1", {"generation": 4})
    tasks.end(task, TaskState.CANCELED, "too late")
    tasks.fail(task, "too late")

    (closed,) = tasks.last("hce", 9)
    assert closed.state == TaskState.DONE
    assert closed.outcome == "applied"
    assert closed.run_id == "run-1"
    assert closed.details == {"generation": 4}
    assert closed.ended >= closed.requested


def test_done_task_may_be_requested_again(tasks):
    task = request(tasks, TaskKind.ADD)
    tasks.end(task, TaskState.DONE, "applied")

    # Events that were reverted may arrive again.
    assert request(tasks, TaskKind.ADD).id != task.id


def test_canceled_task_is_not_requested_again(tasks):
    tasks.end(request(tasks), TaskState.CANCELED, "by hand")

    assert request(tasks) is None


def test_addition_of_more_events_replaces_one_of_fewer(tasks):
    more_events = EventRange(1, 30)
    request(tasks, TaskKind.ADD)
    larger = request(tasks, TaskKind.ADD, event_range=more_events)
    other_retriever = request(tasks, TaskKind.ADD, retriever="other")

    tasks.close_others(TaskKind.ADD, "hce", more_events)

    assert {task.id for task in tasks.open()} == {larger.id, other_retriever.id}


def test_close_others_without_range_closes_all(tasks):
    request(tasks, TaskKind.ADD)
    other_retriever = request(tasks, TaskKind.ADD, retriever="other")

    tasks.close_others(TaskKind.ADD, "hce", None)

    assert tasks.open() == [other_retriever]


def test_requested_retrain_closes_pilots(tasks):
    request(tasks, TaskKind.PILOT)
    request(tasks, TaskKind.PILOT, retriever="other")

    request(tasks, event_range=SECOND_BATCH)

    assert [task.kind for task in tasks.open("hce")] == [TaskKind.RETRAIN]
    assert [task.kind for task in tasks.open("other")] == [TaskKind.PILOT]


def test_finished_retrain_closes_pilots(tasks):
    request(tasks, TaskKind.PILOT)

    tasks.close_retrains("hce", TaskState.REFUSED, "worse", {})

    assert tasks.open("hce") == []


def test_pilot_requests_retrain_when_it_ends(tasks):
    pilot = request(tasks, TaskKind.PILOT)

    tasks.end(pilot, TaskState.DONE, "a retrain is due", retrain=True)

    (retrain,) = tasks.open()
    assert retrain.kind == TaskKind.RETRAIN
    assert retrain.event_range == FIRST_BATCH
    assert retrain.requested_by == pilot.id


def test_closed_pilot_requests_no_retrain(tasks):
    pilot = request(tasks, TaskKind.PILOT)
    tasks.end(pilot, TaskState.DONE, "settled")

    tasks.end(pilot, TaskState.DONE, "a retrain is due", retrain=True)

    assert tasks.open() == []


def test_finished_retrain_closes_its_task(tasks):
    task = request(tasks)

    tasks.close_retrains("hce", TaskState.REFUSED, "worse", {"version": "2"}, "run-1")

    (closed,) = tasks.last("hce", 9)
    assert closed.id == task.id
    assert closed.state == TaskState.REFUSED
    assert closed.details == {"version": "2"}


def test_retrain_without_task_is_recorded(tasks):
    request(tasks)
    tasks.close_retrains("hce", TaskState.REFUSED, "worse", {"version": "2"})

    tasks.close_retrains("hce", TaskState.DONE, "better", {"version": "3"})

    assert kinds_and_states(tasks) == [
        (TaskKind.RETRAIN, TaskState.DONE),
        (TaskKind.RETRAIN, TaskState.REFUSED),
    ]
    newest = tasks.last("hce", 1)[0]
    assert newest.event_range is None
    assert newest.requested_by == "person"


def test_database_allows_one_open_task(database, tasks):
    request(tasks)
    with database.read() as connection:
        row = dict(connection.execute(sa.select(table)).one()._mapping)

    with pytest.raises(sa.exc.IntegrityError), database.write() as connection:
        connection.execute(sa.insert(table).values({**row, "id": "another"}))
    with database.write() as connection:
        connection.execute(sa.insert(table).values({**row, "id": "another", "state": "done"}))


def test_task_is_printed_under_stable_keys(tasks):
    printed = request(tasks).as_dict()

    assert printed["about"] == [1, 24]
    assert printed["asked_by"] == "drift"
    assert printed["asked"] > 0
    assert printed["details"] == {}
