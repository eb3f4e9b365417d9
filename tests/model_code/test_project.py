"""Guards locks between processes, that who waits says for what, and where a project keeps its
state.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from model_code.errors import FreshetError
from model_code.project import LOCK_HELD, WAITING, Project, file_lock, lock_is_free

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from model_code.project import Project

root, name = Path(sys.argv[1]), sys.argv[2]
print("asking", flush=True)
with Project(root).lock(), (root / "log").open("a") as log:
    print(name, "in", file=log, flush=True)
    print("holding", flush=True)
    sys.stdin.readline()
    print(name, "out", file=log, flush=True)
"""


def start_holder(root: Path, name: str) -> subprocess.Popen[str]:
    """A process that takes the lock, and lets go of it when it is sent a line; it has asked for it
    on return.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root), name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "asking\n"
    return process


def test_two_processes_never_hold_the_lock_at_once(tmp_path):
    first = start_holder(tmp_path, "first")
    assert first.stdout.readline() == "holding\n"

    second = start_holder(tmp_path, "second")
    # Without the lock, the second would have entered by now.
    time.sleep(0.3)

    assert (tmp_path / "log").read_text() == "first in\n"

    said = [process.communicate("let go\n", timeout=30)[1] for process in (first, second)]
    assert said == [
        "",
        f"{WAITING}: process {first.pid} (-c {tmp_path} first) holds project.lock\n",
    ]
    assert (tmp_path / "log").read_text().splitlines() == [
        "first in",
        "first out",
        "second in",
        "second out",
    ]


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    first = start_holder(tmp_path, "first")
    assert first.stdout.readline() == "holding\n"

    first.kill()
    first.communicate()
    second = start_holder(tmp_path, "second")
    second.communicate("let go\n", timeout=30)

    assert (tmp_path / "log").read_text().splitlines() == ["first in", "second in", "second out"]


def test_child_process_does_not_wait_for_lock(tmp_path):
    with Project(tmp_path).lock():
        child = start_holder(tmp_path, "child")
        child.communicate("let go\n", timeout=30)

    assert child.returncode == 0
    assert LOCK_HELD not in os.environ


def test_other_thread_waits_for_project_lock(tmp_path):
    order: list[str] = []

    def second() -> None:
        with Project(tmp_path).lock():
            order.append("second")

    with Project(tmp_path).lock(), Project(tmp_path).lock():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.3)
        order.append("first")
    thread.join(timeout=30)

    assert order == ["first", "second"]
    assert LOCK_HELD not in os.environ


def test_state_folder_is_in_project_by_default(tmp_path, monkeypatch):
    """And a temporary workspace of an experiment shares that of its project."""
    assert Project(tmp_path).state == tmp_path / ".freshet"
    assert Project(tmp_path / ".dvc" / "tmp" / "exps" / "tmp1").state == tmp_path / ".freshet"
    assert Project(tmp_path / ".dvc" / "tmp").state == tmp_path / ".dvc" / "tmp" / ".freshet"

    monkeypatch.setenv("FRESHET_STATE", str(tmp_path / "elsewhere"))
    assert Project(tmp_path / "project").state == tmp_path / "elsewhere"

    monkeypatch.setenv("FRESHET_STATE", "state")
    monkeypatch.chdir("/")

    # The answer does not depend on the working directory.
    assert Project(tmp_path / "project").state == tmp_path / "project" / "state"


def test_project_is_found_from_subfolder(tmp_path):
    (tmp_path / "data" / "raw").mkdir(parents=True)
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).touch()

    assert Project.find(tmp_path / "data" / "raw").root == tmp_path


def test_lock_is_reentrant_and_makes_others_wait(tmp_path):
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "new" / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "new" / "lock"):
        with file_lock(tmp_path / "new" / "." / "lock"):
            order.append("inner")
        thread.start()
        thread.join(timeout=0.2)
        order.append("outer")
    thread.join(timeout=30)
    assert order == ["inner", "outer", "second"]


def test_only_waiting_lock_user_prints_message(tmp_path, capsys):
    def second() -> None:
        with file_lock(tmp_path / "lock", "waiting for the first"):
            said.append(capsys.readouterr().err)

    said: list[str] = []
    second()
    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "lock"):
        thread.start()
        thread.join(timeout=0.2)
        assert said == [""]
    thread.join(timeout=30)
    assert said[0] == ""
    assert said[1].startswith(f"waiting for the first: process {os.getpid()} (")


def test_lock_timeout_names_the_owner(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("model_code.project.PATIENCE", 0.05)
    first = start_holder(tmp_path, "first")

    assert first.stdout.readline() == "holding\n"

    lock = tmp_path / ".freshet" / "project.lock"
    told = rf"process {first.pid} \(.*\) has held .*project.lock for 0.1 s"
    with pytest.raises(FreshetError, match=told), file_lock(lock, limit=0.1):
        pass

    assert capsys.readouterr().err.startswith(f"waiting: process {first.pid} (")

    first.communicate("let go\n", timeout=30)
    with file_lock(lock, limit=0.1):
        assert not lock_is_free(lock)
