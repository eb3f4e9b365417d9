"""Tests of the separate process that makes recorded changes searchable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
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
from orchestration.service import apply_process, child_process, service
from orchestration.service.apply_process import (
    IDLE_SECONDS,
    ApplyAnswer,
    ApplyProcess,
    ApplyRequest,
    EncodeRequest,
    RemoteApplier,
)
from orchestration.service.apply_worker import ApplyWorker
from orchestration.service.child_process import READY, ChildProcess, ProcessEnded
from orchestration.service.server import make_apply_process
from orchestration.service.service import Service
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


class FakeChild:
    """Stands for the child process, and answers each request for a batch at once.

    Attributes:
        starts: How often it was started.
        is_started: Whether it is running.
        is_ready: Whether it is ready once it runs.
        cannot_start: Whether a start has no effect, as without memory.
        sent: Messages that it received.
        before_answer: Is called while a batch is applied.
        before_ready: Is called while somebody waits for the start.
    """

    pid = 1

    def __init__(self) -> None:
        self.starts = 0
        self.is_started = False
        self.is_ready = True
        self.cannot_start = False
        self.sent: list[object] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.before_ready: Callable[[], None] = lambda: None

    def start(self) -> None:
        if not self.cannot_start:
            self.starts += 1
            self.is_started = True

    def check_ready(self) -> bool:
        return self.is_started and self.is_ready

    def wait_ready(self, seconds: float) -> bool:
        self.before_ready()
        return self.check_ready()

    def send(self, message: object) -> None:
        if not self.is_started:
            raise ProcessEnded
        self.sent.append(message)

    def receive(self) -> ApplyAnswer:
        self.before_answer()
        if not self.is_started:
            raise ProcessEnded
        return ApplyAnswer()

    def stop(self) -> None:
        self.is_started = False


class FakeIndex:
    """Stands for the live index in the service.

    Attributes:
        pending: Whether changes wait.
        applied: How often it applied changes itself.
    """

    retriever = "hce"

    def __init__(self) -> None:
        self.pending = True
        self.applied = 0

    def has_pending_changes(self) -> bool:
        return self.pending

    def apply(self) -> None:
        self.applied += 1

    def release(self) -> None:
        pass


class TestLifeOfTheProcess:
    """When the process runs. The child process and the index are replaced by fakes."""

    @pytest.fixture
    def child(self) -> FakeChild:
        return FakeChild()

    @pytest.fixture
    def index(self) -> FakeIndex:
        return FakeIndex()

    @pytest.fixture
    def process(
        self, tmp_path: Path, child: FakeChild, monkeypatch: pytest.MonkeyPatch
    ) -> ApplyProcess:
        monkeypatch.setattr(apply_process, "ChildProcess", lambda *arguments: child)
        monkeypatch.setattr(apply_process, "uses_pytorch", lambda: False)
        return ApplyProcess(Project(tmp_path))

    def pass_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        later = time.monotonic() + IDLE_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)

    def test_process_is_not_started_without_changes(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        index.pending = False

        assert process.applier(index) is index
        assert child.starts == 0

    def test_first_change_starts_the_process_and_waits_for_it(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        assert isinstance(process.applier(index), RemoteApplier)
        assert child.starts == 1

    def test_ready_process_applies_changes(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        process.applier(index)

        process.applier(index).apply()

        assert child.sent == [ApplyRequest("hce")]
        assert index.applied == 0

    def test_starting_process_is_not_started_again(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        child.is_ready = False

        for _ in range(3):
            assert process.applier(index) is index

        assert child.starts == 1

    def test_service_applies_changes_if_no_process_can_start(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        child.cannot_start = True

        process.applier(index).apply()
        process.applier(index).apply()

        assert index.applied == 2

    def test_process_is_stopped_when_idle(
        self,
        process: ApplyProcess,
        child: FakeChild,
        index: FakeIndex,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        process.applier(index)
        process.stop_if_idle()
        assert child.is_started

        self.pass_time(monkeypatch)
        process.stop_if_idle()

        assert not child.is_started

    def test_process_that_applies_changes_is_not_idle(
        self,
        process: ApplyProcess,
        child: FakeChild,
        index: FakeIndex,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        process.applier(index)

        def stop_late() -> None:
            self.pass_time(monkeypatch)
            process.stop_if_idle()

        child.before_answer = stop_late
        process.applier(index).apply()

        assert child.is_started
        assert index.applied == 0

    def test_service_applies_changes_that_meet_the_idle_stop(
        self,
        process: ApplyProcess,
        child: FakeChild,
        index: FakeIndex,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        process.applier(index)
        applier = process.applier(index)
        self.pass_time(monkeypatch)
        process.stop_if_idle()

        applier.apply()

        assert index.applied == 1

    def test_process_starts_again_after_the_idle_stop(
        self,
        process: ApplyProcess,
        child: FakeChild,
        index: FakeIndex,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        process.applier(index)
        self.pass_time(monkeypatch)
        process.stop_if_idle()

        process.applier(index)

        assert child.starts == 2
        process.stop_if_idle()
        assert child.is_started

    def test_service_applies_changes_if_the_start_fails(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        child.before_ready = child.stop

        process.applier(index).apply()

        assert child.starts == 1
        assert index.applied == 1

    def test_service_with_pytorch_does_not_wait_for_the_process(
        self,
        process: ApplyProcess,
        child: FakeChild,
        index: FakeIndex,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(apply_process, "uses_pytorch", lambda: True)
        child.is_ready = False

        assert process.applier(index) is index

        child.is_ready = True
        assert isinstance(process.applier(index), RemoteApplier)

    def test_service_repeats_the_batch_of_a_killed_process(
        self, process: ApplyProcess, child: FakeChild, index: FakeIndex
    ) -> None:
        process.applier(index)
        child.before_answer = child.stop

        process.applier(index).apply()

        assert index.applied == 1


def test_killed_process_is_replaced(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "RESTART_SECONDS", 0)
    monkeypatch.setattr(apply_process, "uses_pytorch", lambda: False)
    process = ApplyProcess(project)
    index = LiveIndex(project)
    receive(index, "first")
    try:
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
        receive(index, "third")
        assert isinstance(process.applier(index), RemoteApplier)
        assert process.pid not in (None, first_pid)
    finally:
        process.stop()
    assert process.pid is None


def test_stopped_process_is_not_started_again(project: Project) -> None:
    process = ApplyProcess(project)
    index = LiveIndex(project)
    receive(index, "new")
    process.applier(index)

    process.stop()

    assert process.applier(index) is index
    assert process.pid is None


def test_error_of_the_process_is_raised(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ApplyProcess(project)
    monkeypatch.setattr(ChildProcess, "send", lambda child, message: None)
    answer = ApplyAnswer("no space left on the device")
    monkeypatch.setattr(ChildProcess, "receive", lambda child: answer)

    with pytest.raises(FreshetError, match="no space left on the device"):
        process.apply(ApplyRequest("hce"))


@pytest.mark.parametrize("has_pytorch", [False, True])
def test_only_service_with_pytorch_loads_what_changes_need(
    project: Project, has_pytorch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "uses_pytorch", lambda: has_pytorch)
    running_service = Service(project, apply_process=ApplyProcess(project))

    running_service.start()

    assert ("builder" in vars(running_service.index())) == has_pytorch
    assert running_service.stop(30)


def test_setting_turns_the_process_off(project: Project) -> None:
    assert make_apply_process(project) is not None

    project.params_file.write_text("{retrievers: {hce: {}}, live: {apply_process: false}}")

    assert make_apply_process(project) is None
