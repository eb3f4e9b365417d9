"""Tests of child processes of the service. The child here is a small module that answers itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.service import child_process
from orchestration.service.child_process import ChildProcess, ProcessEnded
from tests.orchestration.service.conftest import until

# The first argument tells how the child behaves.
CHILD = """
import os, sys
from orchestration.service.child_process import READY, connect_to_service

connection = connect_to_service(int(sys.argv[1]))
if sys.argv[2] == "broken":
    raise SystemExit(3)
connection.send(READY)
while True:
    try:
        message = connection.recv()
    except EOFError:
        break
    if message == "wait":
        continue
    connection.send((os.getpid(), message))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the module of the child, and return its name."""
    (tmp_path / "echo_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    return "echo_child"


@pytest.fixture
def child(module: str) -> Iterator[ChildProcess]:
    """Return a child that answers each message with its id and the message."""
    child = ChildProcess(module, ["working"], "the child")
    yield child
    child.stop()


def test_child_answers_requests(child: ChildProcess) -> None:
    child.start()
    assert until(child.check_ready)

    child.send("question")

    assert child.receive() == (child.pid, "question")


def test_child_is_nicer_than_its_service(module: str) -> None:
    child = ChildProcess(module, ["working"], "the child", niceness=2)
    child.start()

    niceness = os.getpriority(os.PRIO_PROCESS, child.pid)

    child.stop()
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 2)


def test_wait_ends_when_the_child_is_ready(child: ChildProcess) -> None:
    child.start()

    assert child.wait_ready(30)


def test_wait_ends_when_the_child_has_ended(module: str) -> None:
    broken = ChildProcess(module, ["broken"], "the child")
    broken.start()

    assert not broken.wait_ready(30)


def test_wait_ends_after_its_time(child: ChildProcess) -> None:
    child.start()

    assert not child.wait_ready(0)


def test_second_start_changes_nothing(child: ChildProcess) -> None:
    child.start()
    first_pid = child.pid

    child.start()

    assert child.pid == first_pid


def test_child_that_is_not_started_is_not_ready(child: ChildProcess) -> None:
    assert not child.check_ready()
    with pytest.raises(ProcessEnded):
        child.send("question")
    with pytest.raises(ProcessEnded):
        child.receive()


def test_killed_child_is_noticed_by_send(
    child: ChildProcess, caplog: pytest.LogCaptureFixture
) -> None:
    child.start()
    assert until(child.check_ready)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(ProcessEnded):
        child.send("question")

    assert not child.is_started
    assert "the child ended (killed by SIGKILL" in caplog.text


def test_killed_child_is_noticed_by_receive(child: ChildProcess) -> None:
    child.start()
    assert until(child.check_ready)
    child.send("wait")
    threading.Timer(0.05, os.kill, (child.pid, signal.SIGKILL)).start()

    with pytest.raises(ProcessEnded):
        child.receive()

    assert child.pid is None


def test_killed_child_is_not_restarted_at_once(child: ChildProcess) -> None:
    child.start()
    assert until(child.check_ready)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ProcessEnded):
        child.receive()

    child.start()

    assert not child.is_started


def test_stopped_child_can_be_started_at_once(
    child: ChildProcess, caplog: pytest.LogCaptureFixture
) -> None:
    child.start()
    first_pid = child.pid

    child.stop()
    child.start()

    assert child.pid not in (None, first_pid)
    assert caplog.text == ""


def test_closed_child_is_not_started_again(child: ChildProcess) -> None:
    child.start()

    child.close()
    child.start()

    assert child.pid is None


def test_stop_ends_a_waiting_receive(child: ChildProcess, caplog: pytest.LogCaptureFixture) -> None:
    child.start()
    assert until(child.check_ready)
    threading.Timer(0.05, child.stop).start()

    with pytest.raises(ProcessEnded):
        child.receive()

    assert caplog.text == ""


def test_child_ends_with_its_service(module: str) -> None:
    service_code = (
        "from orchestration.service.child_process import ChildProcess\n"
        f"child = ChildProcess({module!r}, ['working'], 'the child')\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    service = subprocess.Popen(
        [sys.executable, "-c", service_code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child_pid = int(service.stdout.readline())

    service.kill()
    service.communicate()

    assert until(lambda: not is_running(child_pid))


def is_running(pid: int) -> bool:
    """Return whether a process runs. A process that has ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_restarts_get_rarer(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = ChildProcess(module, ["broken"], "the child")
    monkeypatch.setattr(time, "monotonic", lambda: now)
    starts = []

    for now in range(0, 1000, 10):
        child.start()
        if child.is_started:
            starts.append(now)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert not child.check_ready()

    assert starts == [0, 60, 180, 420, 900]


def test_failed_start_is_reported(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(child_process.subprocess, "Popen", fail)

    child.start()
    child.start()

    assert not child.is_started
    assert caplog.text.count("Cannot allocate memory") == 1
