"""Tests of `freshet ui`.

It starts two pages on this machine only, and no process that it started outlives it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.cli.options import LOCAL_HOST
from orchestration.cli.pages import (
    page_addresses,
    page_commands,
    page_variables,
    require_free_port,
    run_together,
    token_variables,
)
from orchestration.guard import TOKEN_FILE_VARIABLE, read_or_create_token
from tests.orchestration.service.conftest import until

ROOT = Path(__file__).parents[3]
LEAF = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(60)"
# A stand-in for a page. It prints its end, and has a child that does not pass on signals. It writes
# its start at once, because two pages write to one file.
PAGE = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('Shutting down', flush=True), os._exit(0)))\n"
    "os.write(1, b'up\\n')\n"
    "open(f'{sys.argv[1]}/{os.getpid()}', 'w').close()\n"
    f"subprocess.run([sys.executable, '-c', {LEAF!r}, sys.argv[1]])\n"
)
SERVE = (
    "import os, sys\nfrom pathlib import Path\nfrom orchestration.cli.pages import run_together\n"
    f"page = [sys.executable, '-c', {PAGE!r}, sys.argv[1]]\n"
    "run_together([page, page], Path(sys.argv[1]), os.environ, Path(sys.argv[1] + '.log'))\n"
)


def ignore_interrupts():
    """Ignore SIGINT, as a background job does from its start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def started_processes(folder):
    """Return the ids of the processes that wrote a file into a folder."""
    return [int(path.name) for path in folder.iterdir()]


def wait_until_started(folder, count):
    """Wait until `count` processes have written a file into a folder."""
    assert until(lambda: len(list(folder.iterdir())) == count)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:3000"),
        ("0.0.0.0", "http://127.0.0.1:3000"),
        ("::1", "http://[::1]:3000"),
    ],
)
def test_address_of_a_page_can_be_opened(tmp_path, host, address):
    pages = page_addresses(Project(tmp_path), 3000, 5000, host)

    assert pages["Dagster"] == address


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_process_behind(tmp_path, number):
    serve = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=ignore_interrupts,
        stderr=subprocess.PIPE,
        text=True,
    )
    # There are two pages, and each has a child.
    wait_until_started(tmp_path, 4)
    process_ids = started_processes(tmp_path)

    serve.send_signal(number)
    _, errors = serve.communicate(timeout=60)

    assert errors == "stopped\n"
    assert serve.returncode == 0
    assert until(lambda: not any(is_running(pid) for pid in process_ids))
    # The lines of several processes may run into each other.
    log = Path(f"{tmp_path}.log").read_text()
    assert "up" in log
    assert "Shutting down" in log
    assert log.replace("up", "").replace("Shutting down", "").strip() == ""


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FAIL_WHEN_BOTH_RUN = """
import os, sys, time
while len(os.listdir(sys.argv[1])) != 2:
    time.sleep(0.05)
sys.exit(3)
"""


def test_ended_page_stops_the_other(tmp_path):
    page = [sys.executable, "-c", PAGE, str(tmp_path)]
    failing_page = [sys.executable, "-c", FAIL_WHEN_BOTH_RUN, str(tmp_path)]
    log = Path(f"{tmp_path}.log")
    handler = signal.getsignal(signal.SIGTERM)

    with pytest.raises(FreshetError, match=rf"exit code 3\): see {log}"):
        run_together([page, failing_page], tmp_path, os.environ, log)

    process_ids = started_processes(tmp_path)
    assert len(process_ids) == 2
    assert until(lambda: not any(is_running(pid) for pid in process_ids))
    # The handlers of the caller are restored.
    assert signal.getsignal(signal.SIGTERM) is handler


def option(command, name):
    """Return the value of an option of a command."""
    return command[command.index(f"--{name}") + 1]


@pytest.mark.parametrize(("hosts", "expected_host"), [((), "127.0.0.1"), (("0.0.0.0",), "0.0.0.0")])
def test_pages_listen_to_the_chosen_host(tmp_path, hosts, expected_host):
    _, dagster, _, mlflow = page_commands(Project(tmp_path), tmp_path, 3001, 5001, *hosts)

    assert option(dagster, "host") == expected_host
    assert option(mlflow, "host") == expected_host


def test_pages_have_their_ports_and_stores(tmp_path):
    _, dagster, _, mlflow = page_commands(Project(tmp_path), tmp_path, 3001, 5001)
    variables = page_variables(Project(tmp_path))

    database = f"sqlite:///{tmp_path}/.freshet/mlflow/mlflow.db"
    assert dagster[2] == "orchestration.guard"
    assert option(dagster, "port") == "3001"
    assert option(mlflow, "app-name") == "freshet"
    assert option(mlflow, "port") == "5001"
    assert variables["MLFLOW_BACKEND_STORE_URI"] == database


def test_password_of_the_store_is_in_no_command_line(tmp_path, monkeypatch):
    store = "postgresql+psycopg://freshet:secret@db/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)

    commands = page_commands(Project(tmp_path), tmp_path, 3001, 5001)

    assert "secret" not in str(commands)
    assert page_variables(Project(tmp_path))["MLFLOW_BACKEND_STORE_URI"] == store


def test_pages_of_this_machine_need_no_token(tmp_path):
    assert token_variables(Project(tmp_path), LOCAL_HOST, False) == {}


def test_pages_require_token_beyond_this_machine(tmp_path):
    project = Project(tmp_path)

    variables = token_variables(project, "0.0.0.0", False)

    assert read_or_create_token(Path(variables[TOKEN_FILE_VARIABLE]))


def test_pages_require_token_if_asked(tmp_path):
    project = Project(tmp_path)

    variables = token_variables(project, LOCAL_HOST, True)

    assert variables == token_variables(project, "0.0.0.0", False)


def test_taken_port_is_named_with_the_remedy():
    with socket.create_server((LOCAL_HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(FreshetError, match=f"port {port} is taken.*--dagster-port"):
            require_free_port(port, "--dagster-port")


def test_closed_port_is_free():
    with socket.create_server((LOCAL_HOST, 0)) as server:
        port = server.getsockname()[1]

    require_free_port(port, "--dagster-port")
