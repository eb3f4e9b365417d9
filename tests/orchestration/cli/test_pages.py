"""Guards that `freshet ui` starts two pages on this machine only, and that nothing it started
outlives it.
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
from orchestration.cli.pages import page_commands, require_free_port, run_together, token_variables
from orchestration.guard import TOKEN_FILE_VARIABLE, read_or_create_token
from tests.orchestration.service.conftest import until

ROOT = Path(__file__).parents[3]
LEAF = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(60)"
# a stand-in for a page: it tells of its end, and has a child of its own that does not pass signals
# on
PAGE = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('Shutting down', flush=True), os._exit(0)))\n"
    "os.write(1, b'up\\n')\n"  # at once: two pages write to one file
    "open(f'{sys.argv[1]}/{os.getpid()}', 'w').close()\n"
    f"subprocess.run([sys.executable, '-c', {LEAF!r}, sys.argv[1]])\n"
)
SERVE = (
    "import os, sys\nfrom pathlib import Path\nfrom orchestration.cli.pages import run_together\n"
    f"page = [sys.executable, '-c', {PAGE!r}, sys.argv[1]]\n"
    "run_together([page, page], Path(sys.argv[1]), os.environ, Path(sys.argv[1] + '.log'))\n"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process_behind(tmp_path, number):
    """As a background job too: such a job starts with SIGINT ignored, as here."""
    serve = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: len(list(tmp_path.iterdir())) == 4)  # two pages and the child of each
    started = [int(path.name) for path in tmp_path.iterdir()]
    serve.send_signal(number)
    assert (serve.communicate(timeout=60)[1], serve.returncode) == ("stopped\n", 0)
    # of several processes, whose lines may run into each other
    told = Path(f"{tmp_path}.log").read_text()
    assert ("up" in told, "Shutting down" in told) == (True, True)
    assert told.replace("up", "").replace("Shutting down", "").strip() == ""
    assert until(lambda: not any(map(_runs, started)))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ended_page_stops_the_other(tmp_path):
    page = [sys.executable, "-c", PAGE, str(tmp_path)]
    both_run = f"len(os.listdir({str(tmp_path)!r})) == 2"
    fails = [
        sys.executable,
        "-c",
        f"import os, time\nwhile not {both_run}: time.sleep(.05)\nexit(3)",
    ]
    log, before = Path(f"{tmp_path}.log"), signal.getsignal(signal.SIGTERM)
    with pytest.raises(FreshetError, match=rf"exit code 3\): see {log}"):
        run_together([page, fails], tmp_path, os.environ, log)
    assert signal.getsignal(signal.SIGTERM) is before, "the handlers of the caller come back"
    started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) == 2
    assert until(lambda: not any(map(_runs, started)))


def test_pages_require_token_beyond_this_machine(tmp_path):
    project = Project(tmp_path)

    def option(command, name):
        return command[command.index(f"--{name}") + 1]

    for host, asked in (("127.0.0.1", ()), ("0.0.0.0", ("0.0.0.0",))):
        _, dagster, _, mlflow = page_commands(project, tmp_path, 3001, 5001, *asked)
        assert (dagster[2], option(mlflow, "app-name")) == ("orchestration.guard", "freshet")
        assert option(dagster, "host") == option(mlflow, "host") == host
        assert (option(dagster, "port"), option(mlflow, "port")) == ("3001", "5001")
        assert (
            option(mlflow, "backend-store-uri") == f"sqlite:///{tmp_path}/.freshet/mlflow/mlflow.db"
        )
    assert token_variables(project, LOCAL_HOST, False) == {}
    variables = token_variables(project, "0.0.0.0", False)
    assert variables == token_variables(project, LOCAL_HOST, True)
    assert read_or_create_token(Path(variables[TOKEN_FILE_VARIABLE]))


def test_a_taken_port_is_named_with_the_remedy():
    with socket.create_server((LOCAL_HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(FreshetError, match=f"port {port} is taken.*--dagster-port"):
            require_free_port(port, "--dagster-port")
    require_free_port(port, "--dagster-port")
