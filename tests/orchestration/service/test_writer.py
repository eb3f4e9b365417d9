"""Guards the writer's start after a crash: what an earlier process received is made searchable before anything else."""

from __future__ import annotations

import pytest

from orchestration.service.job_queue import JobQueue
from orchestration.service.jobs import addition
from orchestration.service.writer import WriterThread
from tests.orchestration.service.conftest import FakeFreshener, FakeLive


@pytest.mark.parametrize("resume", [True, False])
def test_what_was_left_is_applied_first(resume):
    live, measured = FakeLive(pending=[("left", "over")]), []
    freshener, queue = FakeFreshener(live), JobQueue(10)
    writer = WriterThread(
        lambda: freshener, queue, lambda: len(live.generations) - 1, lambda *each: measured.append(each), 1
    )
    job = queue.put(addition([{"_id": "new", "text": "tea"}], "test"))
    writer.start(resume)
    assert job.applied.result(5).generation == (2 if resume else 1)
    writer.stop()
    assert live.generations[-1] == {"a": "apple", "b": "bread", "left": "over", "new": "tea"}
    assert live.batches == ([1, 1] if resume else [2])
    assert len(measured) == 1
    assert job.received.result().events == (0,)
