"""Guards the queue's start after a crash: what an earlier process received is made searchable
before anything else.
"""

from __future__ import annotations

import threading
import time

import pytest

from model_code.settings import SettingsError
from orchestration.service.errors import NotReady
from orchestration.service.ingest_queue import IngestJob, IngestQueue
from tests.orchestration.service.conftest import FakeCollection, FakeLive


def first_generation():
    return "hce", 1


def addition(name):
    return IngestJob(1, lambda live: live.receive([{"_id": name, "text": "tea"}], "test"))


@pytest.mark.parametrize("resume", [True, False])
def test_what_was_left_is_applied_first(resume):
    live, measured = FakeLive(pending=[("left", "over")]), []
    collection = FakeCollection(live)
    queue = IngestQueue(
        lambda: collection,
        lambda: ("hce", len(live.generations) - 1),
        lambda *each: measured.append(each),
    )
    job = queue.put(addition("new"))
    live.door.clear()
    queue.start(resume)
    while resume and not live.batches:
        time.sleep(0.005)
    live.door.set()
    assert job.applied.result(30) == (2 if resume else 1)
    queue.stop()
    assert live.generations[-1] == {"a": "apple", "b": "bread", "left": "over", "new": "tea"}
    assert live.batches == ([1, 1] if resume else [2])
    assert len(measured) == 1
    assert job.received.result().events == (0,)


def test_what_is_held_up_does_not_hold_up_the_end():
    live = FakeLive()
    queue = IngestQueue(lambda: FakeCollection(live), first_generation, lambda *each: None)
    live.gate.clear()
    queue.start(resume=False)
    job = queue.put(addition("new"))
    assert job.received.result(30).events == (0,)
    assert not queue.stop(0.05)
    queue.answer_all()
    assert job.applied.result(0) is None
    live.gate.set()
    assert queue.stop(5)


def test_what_is_not_urgent_comes_when_no_job_waits(monkeypatch):
    monkeypatch.setattr("orchestration.service.ingest_queue.IDLE_SECONDS", 0.01)
    live, order, left, finished = FakeLive(), [], [True, True, False, False], threading.Event()
    collection = FakeCollection(live)

    def spare():
        order.append("spare")
        finished.set() if len(left) == 1 else None
        return left.pop(0)

    queue = IngestQueue(
        lambda: collection, lambda: order.append("job") or ("hce", 1), lambda *each: None, spare
    )
    queue.start(resume=False)
    assert queue.put(addition("new")).applied.result(30)
    while len(left) > 1:
        time.sleep(0.005)
    assert queue.put(addition("other")).applied.result(30)
    assert finished.wait(30)
    queue.stop()
    assert order == ["job", "spare", "spare", "spare", "job", "spare"], (
        "and never while nothing was added"
    )


def test_upkeep_that_fails_ends_nothing(monkeypatch):
    monkeypatch.setattr("orchestration.service.ingest_queue.IDLE_SECONDS", 0.01)
    live, tried = FakeLive(), threading.Event()

    def spare():
        tried.set()
        raise SettingsError("params.yaml: line 3 is half a line")

    queue = IngestQueue(lambda: FakeCollection(live), first_generation, lambda *each: None, spare)
    queue.start(resume=False)
    assert queue.put(addition("new")).applied.result(30)
    assert tried.wait(30)
    assert queue.put(addition("other")).applied.result(30)
    queue.stop()
    assert live.generations[-1]["other"] == "tea"


def test_what_the_database_does_not_take_fails_its_own_request_alone():
    live = FakeLive()

    def refused(collection):
        raise ValueError("a NUL byte")

    queue = IngestQueue(lambda: FakeCollection(live), first_generation, lambda *each: None)
    bad, good = queue.put(IngestJob(1, refused)), queue.put(addition("new"))
    queue.start(resume=False)
    assert good.applied.result(30) == 1
    with pytest.raises(NotReady, match="not received: a NUL byte"):
        bad.received.result(30)
    queue.stop()
    assert queue.failure is None


def test_what_fails_again_and_again_is_tried_ever_more_seldom_until_a_job_comes():
    live = FakeLive(pending=[("left", "over")], failing="not every document is found")
    collection = FakeCollection(live)
    queue = IngestQueue(lambda: collection, first_generation, lambda *each: None)
    pauses = []
    for jobs in ([], [], [], [], [], [], [], [], [addition("new")], []):
        assert all(queue._record(job) for job in jobs)
        queue._apply_batch(jobs)
        pauses.append(queue._wait_timeout())
        for job in jobs:
            with pytest.raises(NotReady, match="the service tries again in 5 s, then less often"):
                job.applied.result(0)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 5, 10]
    live.failing = ""
    queue._apply_batch([])
    assert (queue.failure, live.generations[-1]["new"]) == (None, "tea")
