"""Guards that a warm Python runs a command as a new Python would, and ends with its build.

Run: python -m pytest tests/orchestration/pipeline/test_warm_python.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from model_code.errors import SettingsError
from orchestration.pipeline.warm_python import program
from orchestration.pipeline.warm_python.program import WarmPython

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has warm Pythons")
ROOT = Path(__file__).parents[3]
TOLD = """
import os, sys
print(os.getcwd(), os.environ["COLOUR"], sys.argv[1:], sys.stdin.read())
print([name for name in sys.modules if name.startswith(("model_code", "orchestration."))])
print("warning", file=sys.stderr)
sys.exit(7)
"""
SLEEPER = """
import os, sys, time
print(os.getpid(), flush=True)
time.sleep(60)
"""
ENDING = """
import atexit, json, sys

class Object:
    def __del__(self):
        print("freed")

json.kept = Object()
atexit.register(print, "exit handler")
code = {"none": None, "text": "a reason", "number": 3}.get(sys.argv[1])
if sys.argv[1] == "error":
    raise ValueError("a fault")
sys.exit(code)
"""
STAGE = """
import os, time
from orchestration.pipeline.run_stage import die_with_ancestors
die_with_ancestors(interval=0.05)
print(os.getpid(), flush=True)
time.sleep(60)
"""
DRIVER = """
import os, subprocess
print(os.getpid(), flush=True)
subprocess.run(["sh", "-c", "python -m stage; true"])
"""
BUILD = """
import sys, time
from orchestration.pipeline.warm_python import program
program.LIBRARIES = ("json",)
warm = program.WarmPython()
print(warm.program, flush=True)
time.sleep(60)
"""


@pytest.fixture
def warm_python(monkeypatch) -> Iterator[WarmPython]:
    """A warm Python whose name says "dvc", which only stages look for."""
    monkeypatch.setattr(program, "LIBRARIES", ("json", "absent_dvc"))
    started = WarmPython()
    yield started
    started.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    scripts = {"told": TOLD, "sleeper": SLEEPER, "stage": STAGE, "driver": DRIVER}
    scripts["ending"] = ENDING
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def start(warm_python: WarmPython, folder: Path, module: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(warm_python.program.parent), os.environ["PATH"]])
    return subprocess.Popen(
        [warm_python.program, "-m", module],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_command_gets_folder_variables_arguments_and_streams(warm_python, folder):
    done = subprocess.run(
        [warm_python.program, "-m", "told", "two words"],
        cwd=folder,
        env={**os.environ, "COLOUR": "blue"},
        input="typed",
        capture_output=True,
        text=True,
    )

    assert done.stdout.splitlines() == [f"{folder} blue ['two words'] typed", "[]"]
    assert done.stderr == "warning\n"
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("way", "code", "message"),
    [("none", 0, ""), ("text", 1, "a reason"), ("number", 3, ""), ("error", 1, "ValueError")],
)
def test_command_runs_its_exit_handlers_and_frees_nothing(warm_python, folder, way, code, message):
    done = subprocess.run(
        [warm_python.program, "-m", "ending", way], cwd=folder, capture_output=True, text=True
    )

    assert done.stdout == "exit handler\n"
    assert message in done.stderr
    assert done.returncode == code


def test_other_arguments_start_a_new_python(warm_python):
    done = subprocess.run(
        [warm_python.program, "-c", "import sys; print(sys.flags.isolated)"],
        capture_output=True,
        text=True,
    )

    assert done.stdout == "0\n"


def test_an_unknown_module_is_an_error(warm_python):
    done = subprocess.run(
        [warm_python.program, "-m", "no_such_module"], capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "No module named no_such_module" in done.stderr


@pytest.fixture
def ignoring_termination() -> Iterator[None]:
    """Ignore SIGTERM in this process, as a build in the background may do."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_its_client(ignoring_termination, warm_python, folder, number):
    client = start(warm_python, folder, "sleeper")
    command = psutil.Process(int(client.stdout.readline()))

    client.send_signal(number)

    assert not psutil.wait_procs([command], timeout=30)[1]
    expected = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}
    assert client.wait(30) == expected[number]


def test_a_killed_command_is_reported(warm_python, folder):
    client = start(warm_python, folder, "sleeper")

    os.kill(int(client.stdout.readline()), signal.SIGKILL)

    assert client.wait(30) == 128 + signal.SIGKILL


def test_a_stage_ends_with_the_dvc_that_started_it(warm_python, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = start(warm_python, folder, "driver")
    driver = psutil.Process(int(client.stdout.readline()))
    stage = psutil.Process(int(client.stdout.readline()))

    driver.kill()

    assert not psutil.wait_procs([stage], timeout=30)[1]


def test_close_waits_for_commands_and_leaves_nothing(monkeypatch, folder):
    monkeypatch.setattr(program, "LIBRARIES", ("json",))
    warm_python = WarmPython()
    client = start(warm_python, folder, "sleeper")
    os.kill(int(client.stdout.readline()), signal.SIGKILL)

    warm_python.close()

    assert client.wait(30) == 128 + signal.SIGKILL
    assert not warm_python.program.exists()


def test_server_ends_with_a_killed_build():
    build = subprocess.Popen(
        [sys.executable, "-c", BUILD],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert build.stdout.readline()
    servers = psutil.Process(build.pid).children()
    assert len(servers) == 1

    build.kill()

    assert not psutil.wait_procs(servers, timeout=30)[1]
    build.wait()


def test_the_switch_accepts_on_and_off(monkeypatch):
    monkeypatch.setenv(program.SWITCH, "off")
    assert not program.is_on()

    monkeypatch.setenv(program.SWITCH, "never")
    with pytest.raises(SettingsError, match="'never', but must be on or off"):
        program.is_on()
