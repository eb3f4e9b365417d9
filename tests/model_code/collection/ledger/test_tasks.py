"""Guards the table of work: asked for once, tried so often, and ended once.

pytest tests/model_code/collection/ledger/test_tasks.py
"""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from model_code.collection.ledger.database import open_database
from model_code.collection.ledger.tasks import (
    MAX_ATTEMPTS,
    EventRange,
    TaskKind,
    TaskState,
    TaskTable,
    table,
)

BATCH, LATER = EventRange(1, 24), EventRange(25, 48)


@pytest.fixture
def database(url):
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def work(database) -> TaskTable:
    return TaskTable(database)


def ask(work, kind=TaskKind.RETRAIN, about=BATCH, retriever="hce"):
    return work.request(kind, retriever, about, "topics moved", requested_by="drift")


def told(work, retriever="hce"):
    """What there is, newest first."""
    return [(each.kind, each.state) for each in work.last(retriever, 9)]


def test_what_is_asked_for_comes_back_as_it_is(work):
    asked = ask(work)
    assert (asked.kind, asked.state, asked.event_range, asked.attempts) == (
        TaskKind.RETRAIN,
        TaskState.OPEN,
        BATCH,
        1,
    )
    assert (
        work.open()
        == work.open("hce")
        == work.open("hce", TaskKind.RETRAIN)
        == work.last("hce", 1)
        == [asked]
    )
    assert work.open("other") == work.open("hce", TaskKind.ADD) == []
    assert work.find_by_run_key(asked.run_key) == asked
    assert work.find_by_run_key(f"retrain-{asked.id}-2") is None


def test_the_same_is_asked_for_once_and_other_events_or_retrievers_are_other_work(work):
    asked = ask(work)
    assert ask(work) == asked
    others = ask(work, about=LATER), ask(work, retriever="other"), ask(work, TaskKind.ADD)
    assert len({each.id for each in (asked, *others)}) == 4


def test_two_that_ask_at_once_ask_once(work):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(work))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({each.id for each in found}) == len(work.open()) == 1


def test_what_fails_is_due_again_under_another_key_and_not_for_ever(work):
    keys = []
    for _ in range(MAX_ATTEMPTS):
        (due,) = work.open() if keys else [ask(work)]
        keys.append(due.run_key)
        for _ in range(2):  # of one attempt
            if (attempt := work.find_by_run_key(due.run_key)) is not None:
                work.fail(attempt, "disk full", "run")
    assert len(set(keys)) == MAX_ATTEMPTS
    assert work.open() == []
    assert told(work) == [(TaskKind.RETRAIN, TaskState.FAILED)]
    assert ask(work) is None, "a person must look"
    assert ask(work, about=LATER) is not None


def test_what_ended_stays_as_it_ended_and_may_be_asked_for_again(work):
    asked = ask(work, TaskKind.ADD)
    work.end(asked, TaskState.DONE, "applied", "run-1", {"generation": 4})
    work.end(asked, TaskState.CANCELED, "too late")
    work.fail(asked, "too late")
    (ended,) = work.last("hce", 9)
    assert (ended.state, ended.outcome, ended.run_id, ended.details) == (
        TaskState.DONE,
        "applied",
        "run-1",
        {"generation": 4},
    )
    assert ended.ended >= ended.requested
    assert ask(work, TaskKind.ADD).id != asked.id, "what was rolled back arrives again"
    work.end(ask(work), TaskState.CANCELED, "by hand")
    assert ask(work) is None, "a person canceled it"


def test_an_addition_of_more_takes_the_place_of_one_of_less(work):
    ask(work, TaskKind.ADD)
    kept = (
        ask(work, TaskKind.ADD, about=EventRange(1, 30)),
        ask(work, TaskKind.ADD, retriever="other"),
    )
    work.close_others(TaskKind.ADD, "hce", EventRange(1, 30))
    assert work.open() == sorted(kept, key=lambda each: each.requested)
    work.close_others(TaskKind.ADD, "hce", None)
    assert work.open() == [kept[1]]


def test_a_retrain_settles_what_pilots_would_tell(work):
    ask(work, TaskKind.PILOT)
    ask(work, TaskKind.PILOT, retriever="other")
    ask(work, about=LATER)
    assert [each.kind for each in work.open("hce")] == [TaskKind.RETRAIN]
    assert [each.kind for each in work.open("other")] == [TaskKind.PILOT]
    work.close_retrains("other", TaskState.REFUSED, "worse", {})
    assert work.open("other") == []


def test_a_pilot_asks_for_a_retrain_at_once_and_not_where_it_was_settled_meanwhile(work):
    pilot = ask(work, TaskKind.PILOT)
    work.end(pilot, TaskState.DONE, "a retrain is due", retrain=True)
    (retrain,) = work.open()
    assert (retrain.kind, retrain.event_range, retrain.requested_by) == (
        TaskKind.RETRAIN,
        BATCH,
        pilot.id,
    )
    work.close_retrains("hce", TaskState.DONE, "better", {"version": "7"})
    late = ask(work, TaskKind.PILOT, about=LATER)
    work.end(late, TaskState.DONE, "settled")
    work.end(late, TaskState.DONE, "a retrain is due", retrain=True)
    assert work.open() == []


def test_how_a_retrain_ended_is_noted_also_where_nobody_asked_for_it(work):
    asked = ask(work)
    work.close_retrains("hce", TaskState.REFUSED, "worse", {"version": "2"}, "run-1")
    (ended,) = work.last("hce", 9)
    assert (ended.id, ended.state, ended.details) == (asked.id, TaskState.REFUSED, {"version": "2"})
    work.close_retrains("hce", TaskState.DONE, "better", {"version": "3"})
    assert told(work) == [(TaskKind.RETRAIN, TaskState.DONE), (TaskKind.RETRAIN, TaskState.REFUSED)]
    assert (work.last("hce", 1)[0].event_range, work.last("hce", 1)[0].requested_by) == (
        None,
        "person",
    )


def test_open_work_is_unique_for_the_database_too(database, work):
    ask(work)
    with database.read() as connection:
        row = dict(connection.execute(sa.select(table)).one()._mapping)
    with pytest.raises(sa.exc.IntegrityError), database.write() as connection:
        connection.execute(sa.insert(table).values(row | {"id": "another"}))
    with database.write() as connection:
        connection.execute(sa.insert(table).values(row | {"id": "another", "state": "done"}))
