"""Guards what the sensor asks for: additions while changes wait, pilots and retrains until they are
settled.
"""

from __future__ import annotations

import shutil

import pytest

from model_code.collection.generations.generation_store import set_default_retriever
from model_code.collection.ledger.states import LedgerView
from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind, TaskState
from orchestration import parameters
from orchestration.freshness.due_tasks import ingest_backlog, record_run_end, request_due_tasks
from tests.live_example import BASE, add, collection_of, make_project, open_build, receive, row

BATCH = EventRange(1, 2)


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def work_of(project):
    return collection_of(project).ledger.tasks


def ask(project, kind, about=BATCH):
    return work_of(project).request(kind, "hce", about, "topics moved", requested_by="drift")


def due(project):
    return [(work.kind, work.run_key) for work in request_due_tasks(project)]


def test_where_nothing_is_live_or_nothing_arrived_nothing_is_due(tmp_path, project):
    assert request_due_tasks(project) == []
    shutil.rmtree(project.live)
    assert request_due_tasks(project) == []


def test_an_addition_is_due_while_changes_wait_and_is_one_work(project, monkeypatch):
    receive(project, "a")
    with monkeypatch.context() as patch:
        patch.setattr(
            LedgerView, "pending", lambda *_: pytest.fail("events were read, with their texts")
        )
        (work,) = request_due_tasks(project)
    assert (work.kind, work.event_range) == (TaskKind.ADD, EventRange(1, 1))
    assert (work.reason, work.requested_by) == ("1 changes wait", "sensor")
    assert request_due_tasks(project) == [work], "two sensors, or two ticks, ask once"
    receive(project, "b")
    (more,) = request_due_tasks(project)
    assert (more.event_range, more.id != work.id) == (EventRange(1, 2), True)
    collection_of(project).apply()
    assert request_due_tasks(project) == []
    assert {each.state for each in work_of(project).last("hce", 9)} == {TaskState.DONE}


@pytest.mark.parametrize("canceled", [False, True])
def test_an_addition_that_failed_is_asked_for_again_and_not_for_ever(project, canceled):
    receive(project, "a")
    for attempt in range(MAX_ATTEMPTS):
        ((kind, key),) = due(project)
        assert kind == TaskKind.ADD
        for _ in range(2):
            record_run_end(project, key, f"run-{attempt}", "disk full", canceled)
    assert due(project) == []
    receive(project, "b")
    assert [kind for kind, _ in due(project)] == [TaskKind.ADD]


@pytest.mark.parametrize("kind", [TaskKind.PILOT, TaskKind.RETRAIN])
def test_what_drift_asked_for_is_tried_again_under_another_key_unless_a_person_canceled_it(
    project, kind
):
    """And not for ever."""
    ask(project, kind)
    keys = []
    for attempt in range(MAX_ATTEMPTS):
        ((due_kind, key),) = due(project)
        assert due_kind == kind
        keys.append(key)
        for _ in range(2):
            record_run_end(project, key, f"run-{attempt}", "out of memory", canceled=False)
    assert len(set(keys)) == MAX_ATTEMPTS
    assert due(project) == []
    again = ask(project, kind, EventRange(3, 4))
    assert again.attempts == 1
    record_run_end(project, again.run_key, "run-9", "the run was canceled", canceled=True)
    assert due(project) == []
    assert work_of(project).last("hce", 1)[0].state == TaskState.CANCELED


def look_at_ten(project):
    """A look at drift that is due, of ten documents that were made searchable."""
    parameters.write_overrides(project.params_file, ["drift.minimum_batch=10"])
    add(collection_of(project), *map(row, "abcdefghij"))
    (look,) = request_due_tasks(project)
    assert (look.kind, look.event_range) == (TaskKind.DRIFT_CHECK, EventRange(1, 10))
    return look


def test_a_look_that_brought_too_few_documents_is_over_and_as_many_more_changes_bring_another(
    project,
):
    work_of(project).end(look_at_ten(project), TaskState.REFUSED, "too few")
    assert (due(project), ingest_backlog(project).unmeasured) == ([], 0), (
        "so that nothing is called stale"
    )
    add(collection_of(project), *map(row, "klmnopqrs"))
    assert (due(project), ingest_backlog(project).unmeasured) == ([], 9)
    add(collection_of(project), row("t"))
    assert [work.event_range for work in request_due_tasks(project)] == [EventRange(11, 20)]


def test_a_look_ends_where_another_retriever_is_searched_meanwhile(project):
    look_at_ten(project)
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    collection_of(project, "other").apply()
    assert [work.retriever for work in request_due_tasks(project)] == ["other"]
    assert work_of(project).open("hce") == []


def test_what_failed_is_noted_once_and_a_refusal_is_no_failure(project):
    first = ask(project, TaskKind.RETRAIN)
    record_run_end(project, "", "run-2", "another job", canceled=False)
    record_run_end(project, first.run_key, "run-1", "out of memory", canceled=False)
    ((_, key),) = due(project)
    work_of(project).close_retrains("hce", TaskState.REFUSED, "worse", {})
    record_run_end(project, key, "run-3", "the gate's check failed", canceled=False)
    (work,) = work_of(project).last("hce", 9)
    assert (work.state, work.attempts, work.outcome) == (TaskState.REFUSED, 2, "worse")


def test_a_failure_is_noted_for_the_retriever_that_was_retrained(project):
    asked = ask(project, TaskKind.RETRAIN)
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    assert due(project) == [], "another one is searched now"
    record_run_end(project, asked.run_key, "run-1", "out of memory", canceled=False)
    assert [work.attempts for work in work_of(project).open("hce")] == [2]


def test_no_pilot_is_due_behind_what_it_would_ask_for(project):
    ask(project, TaskKind.PILOT)
    ask(project, TaskKind.RETRAIN, EventRange(3, 4))
    assert [kind for kind, _ in due(project)] == [TaskKind.RETRAIN]


def test_keys_differ_from_those_of_a_ledger_that_was_deleted(tmp_path, project):
    """Dagster starts no second run of a key, and its history outlives the ledger."""

    def life(project):
        receive(project, "a")
        ask(project, TaskKind.RETRAIN)
        return due(project)

    first = life(project)
    shutil.rmtree(project.live)
    again = life(make_project(tmp_path))
    assert (
        [kind for kind, _ in first]
        == [kind for kind, _ in again]
        == [TaskKind.ADD, TaskKind.RETRAIN]
    )
    assert not set(first) & set(again)
