"""Tests of the queue of changes: order, retries, maintenance, and what a crash left behind."""

from __future__ import annotations

import threading
import time

import pytest

from model_code.settings import SettingsError
from orchestration.service import ingest_queue
from orchestration.service.errors import NotReady
from orchestration.service.ingest_queue import IngestJob, IngestQueue
from tests.orchestration.service.conftest import FakeCollection, FakeLive


def publish_first_generation() -> tuple[str, int]:
    return "hce", 1


def ignore_batch(seconds, delays) -> None:
    """A metric that nobody reads."""


def make_queue(live: FakeLive, **options) -> IngestQueue:
    index = FakeCollection(live)
    return IngestQueue(lambda: index, publish_first_generation, ignore_batch, **options)


def addition(name: str) -> IngestJob:
    return IngestJob(1, lambda index: index.receive([{"_id": name, "text": "tea"}], "test"))


@pytest.fixture
def idle_at_once(monkeypatch):
    """Maintenance starts as soon as no job waits."""
    monkeypatch.setattr(ingest_queue, "IDLE_SECONDS", 0.01)


@pytest.mark.parametrize("apply_at_start", [True, False])
def test_changes_of_a_crashed_process_are_applied(apply_at_start):
    live = FakeLive(pending=[("left", "over")])
    index = FakeCollection(live)
    batches = []

    def return_index():
        return index

    def publish():
        return "hce", len(live.generations) - 1

    def record_batch(seconds, delays):
        batches.append(delays)

    queue = IngestQueue(return_index, publish, record_batch)

    job = queue.put(addition("new"))
    live.can_receive.clear()
    queue.start(apply_at_start)
    while apply_at_start and not live.batches:
        time.sleep(0.005)
    live.can_receive.set()
    generation = job.applied.result(30)
    queue.stop()

    # Applied at the start, the left document is a batch of its own.
    expected_generation = 2 if apply_at_start else 1
    expected_batches = [1, 1] if apply_at_start else [2]
    assert generation == expected_generation
    assert live.batches == expected_batches
    assert live.generations[-1] == {"a": "apple", "b": "bread", "left": "over", "new": "tea"}
    assert len(batches) == 1
    assert job.received.result().events == (0,)


def test_stop_does_not_wait_for_a_slow_batch():
    live = FakeLive()
    queue = make_queue(live)
    live.can_apply.clear()
    queue.start(apply_at_start=False)

    job = queue.put(addition("new"))
    assert job.received.result(30).events == (0,)
    assert not queue.stop(0.05)
    queue.answer_all()

    assert job.applied.result(0) is None
    live.can_apply.set()
    assert queue.stop(5)


def test_maintenance_runs_while_no_job_waits(idle_at_once):
    order = []
    remaining = [True, True, False, False]
    all_done = threading.Event()

    def publish():
        order.append("job")
        return "hce", 1

    def maintain():
        order.append("maintain")
        if len(remaining) == 1:
            all_done.set()
        return remaining.pop(0)

    index = FakeCollection(FakeLive())
    queue = IngestQueue(lambda: index, publish, ignore_batch, maintain)
    queue.start(apply_at_start=False)
    assert queue.put(addition("new")).applied.result(30)
    while len(remaining) > 1:
        time.sleep(0.005)
    assert queue.put(addition("other")).applied.result(30)
    assert all_done.wait(30)
    queue.stop()

    # It never runs before the first addition.
    assert order == ["job", "maintain", "maintain", "maintain", "job", "maintain"]


def test_failed_maintenance_does_not_stop_the_queue(idle_at_once):
    live = FakeLive()
    was_called = threading.Event()

    def maintain():
        was_called.set()
        raise SettingsError("params.yaml: line 3 is half a line")

    queue = make_queue(live, maintain=maintain)
    queue.start(apply_at_start=False)
    assert queue.put(addition("new")).applied.result(30)
    assert was_called.wait(30)
    assert queue.put(addition("other")).applied.result(30)
    queue.stop()

    assert live.generations[-1]["other"] == "tea"


def test_refused_job_does_not_affect_others():
    def refuse(index):
        raise ValueError("a NUL byte")

    queue = make_queue(FakeLive())
    refused_job = queue.put(IngestJob(1, refuse))
    accepted_job = queue.put(addition("new"))
    queue.start(apply_at_start=False)

    assert accepted_job.applied.result(30) == 1
    with pytest.raises(NotReady, match="not received: a NUL byte"):
        refused_job.received.result(30)
    queue.stop()
    assert queue.failure is None


def test_failed_batch_is_retried_less_and_less_often():
    live = FakeLive(pending=[("left", "over")], apply_error="not every document is found")
    queue = make_queue(live)

    pauses = []
    for _ in range(8):
        queue._apply_batch([])
        pauses.append(queue._wait_timeout())

    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_new_job_resets_the_pause_after_a_failure():
    live = FakeLive(pending=[("left", "over")], apply_error="not every document is found")
    queue = make_queue(live)
    queue._apply_batch([])
    queue._apply_batch([])

    job = addition("new")
    assert queue._record(job)
    queue._apply_batch([job])

    assert queue._wait_timeout() == 5
    with pytest.raises(NotReady, match="the service tries again in 5 s, then less often"):
        job.applied.result(0)


def test_failure_ends_with_the_next_success():
    live = FakeLive(pending=[("left", "over")], apply_error="not every document is found")
    queue = make_queue(live)
    queue._apply_batch([])
    assert queue.failure == "not every document is found"

    live.apply_error = ""
    queue._apply_batch([])

    assert queue.failure is None
    assert live.generations[-1]["left"] == "over"


class EncodingCollection(FakeCollection):
    """A collection that notes which documents are encoded before their batch."""

    def __init__(self, live: FakeLive, fails: bool = False) -> None:
        super().__init__(live)
        self.fails = fails
        self.encoded: list[str] = []
        self.was_called = threading.Event()

    def encode_ahead(self, documents: list[str]) -> None:
        self.encoded.extend(documents)
        self.was_called.set()
        if self.fails:
            raise ValueError("no encoder")


@pytest.mark.parametrize("fails", [False, True])
def test_documents_are_encoded_while_a_batch_is_applied(fails: bool) -> None:
    live = FakeLive()
    index = EncodingCollection(live, fails)
    queue = IngestQueue(lambda: index, publish_first_generation, ignore_batch)
    live.can_apply.clear()
    queue.start(apply_at_start=False)
    first = queue.put(addition("first"))
    while queue.documents:
        time.sleep(0.005)

    queue.encode_soon(["second"])

    assert index.was_called.wait(30)
    assert not first.applied.done()
    live.can_apply.set()
    assert first.applied.result(30) == 1
    # The thread still runs, also after a failure.
    assert all(thread.is_alive() for thread in queue._threads)
    assert queue.stop(30)
    assert index.encoded == ["second"]


def test_documents_of_large_requests_are_not_encoded_ahead() -> None:
    index = EncodingCollection(FakeLive())
    queue = IngestQueue(lambda: index, publish_first_generation, ignore_batch)
    queue.encode_soon(["one"] * (ingest_queue.MAX_ENCODED_AHEAD + 1))
    queue.start(apply_at_start=False)

    queue.encode_soon(["two"])

    assert index.was_called.wait(30)
    assert index.encoded == ["two"]
    assert queue.stop(30)
