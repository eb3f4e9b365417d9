"""Tests of the separate process that makes recorded changes searchable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.errors import FreshetError
from model_code.project import Project, file_lock
from orchestration.service import child_process
from orchestration.service.apply_process import (
    ApplyAnswer,
    ApplyProcess,
    ApplyRequest,
    EncodeRequest,
    RemoteApplier,
)
from orchestration.service.apply_worker import ApplyWorker
from orchestration.service.child_process import READY, ChildProcess
from orchestration.service.server import make_apply_process
from tests.model_code.collection.conftest import make_build
from tests.orchestration.service.conftest import until


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with the live retriever "hce", whose encoder is tiny."""
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()
    make_build(tmp_path / "build").open(tmp_path)
    return Project(tmp_path)


def receive(index: LiveIndex, name: str) -> None:
    index.receive([{"_id": name, "title": name, "text": f"About {name}."}], "test")


def is_searchable(project: Project, name: str) -> bool:
    return name in Searcher.open(project.live).documents([name])


class TestWorker:
    """The worker runs in a thread here, which is faster than a process."""

    @pytest.fixture
    def service_end(self, project: Project) -> Iterator[Connection]:
        """Start a worker, and return the service's end of its pipe after it is ready."""
        service_end, worker_end = Pipe()
        thread = threading.Thread(target=ApplyWorker(project, worker_end).run)
        thread.start()
        assert service_end.recv() == READY
        yield service_end
        service_end.close()
        thread.join(30)
        # The worker ends when the service has closed its end of the pipe.
        assert not thread.is_alive()

    def test_changes_are_applied(self, project: Project, service_end: Connection) -> None:
        receive(LiveIndex(project), "new")

        service_end.send(ApplyRequest("hce"))

        assert service_end.recv() == ApplyAnswer()
        assert is_searchable(project, "new")

    def test_failure_is_answered_and_work_continues(
        self, project: Project, service_end: Connection
    ) -> None:
        receive(LiveIndex(project), "new")

        service_end.send(ApplyRequest("other"))
        failure = service_end.recv()
        service_end.send(ApplyRequest("hce"))

        assert failure.error.startswith("retriever 'other' is not live")
        assert service_end.recv() == ApplyAnswer()

    def test_documents_are_encoded_before_their_batch(
        self, project: Project, service_end: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoded = []
        monkeypatch.setattr(
            LiveIndex, "encode_ahead", lambda index, documents: encoded.extend(documents)
        )

        service_end.send(EncodeRequest("hce", ["first", "second"]))

        assert until(lambda: encoded == ["first", "second"])


def test_killed_process_is_replaced(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "RESTART_SECONDS", 0)
    process = ApplyProcess(project)
    index = LiveIndex(project)
    process.start()
    # This process applies changes as long as the other one is not ready.
    assert process.applier(index) is index
    try:
        assert until(lambda: isinstance(process.applier(index), RemoteApplier))
        receive(index, "first")
        process.applier(index).apply()
        assert is_searchable(project, "first")
        # This process did not have to open the index in order to change it.
        assert "builder" not in vars(index)

        first_pid = process.pid
        receive(index, "second")
        # The process waits for this lock in the middle of its work, and is killed there.
        with ThreadPoolExecutor(1) as pool, file_lock(project.live / WRITER_LOCK):
            batch = pool.submit(process.applier(index).apply)
            time.sleep(0.1)
            os.kill(first_pid, signal.SIGKILL)
            assert until(lambda: process.pid is None)
            assert not is_searchable(project, "second")
        batch.result(30)

        assert is_searchable(project, "second")
        assert "ended (killed by SIGKILL" in caplog.text
        assert process.applier(index) is index
        assert process.pid not in (None, first_pid)
    finally:
        process.stop()
    assert process.pid is None


def test_stopped_process_is_not_started_again(project: Project) -> None:
    process = ApplyProcess(project)

    process.stop()

    index = LiveIndex(project)
    assert process.applier(index) is index
    assert process.pid is None


def test_error_of_the_process_is_raised(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ApplyProcess(project)
    monkeypatch.setattr(ChildProcess, "send", lambda child, message: None)
    answer = ApplyAnswer("no space left on the device")
    monkeypatch.setattr(ChildProcess, "receive", lambda child: answer)

    with pytest.raises(FreshetError, match="no space left on the device"):
        process.apply(ApplyRequest("hce"))


def test_setting_turns_the_process_on(project: Project) -> None:
    assert make_apply_process(project) is None

    project.params_file.write_text("{retrievers: {hce: {}}, live: {apply_process: true}}")

    assert make_apply_process(project) is not None
