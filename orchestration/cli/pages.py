"""Start the pages of Dagster and MLflow together, and stop them together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from model_code.errors import FreshetError
from model_code.files import write_json, write_text
from model_code.project import Project
from orchestration.cli.options import LOCAL_HOST
from orchestration.cli.signals import STOP_SIGNALS, handle_stop_signals
from orchestration.guard import TOKEN_FILE_VARIABLE, local_address, required_token
from orchestration.instance import LOCATION, dagster_home, fail_abandoned_runs
from orchestration.pipeline.dvc import environment
from orchestration.pipeline.runs import record_all, runs_page, tracking_uri
from orchestration.service.overview import PAGES_FILE

# Seconds that the processes have to end by themselves, before they are killed. Dagster's daemon
# needs a few seconds.
STOP_TIMEOUT_SECONDS = 20.0
PROCESS_CHECK_SECONDS = 0.2
# MLflow would start nine worker processes for jobs that Freshet never submits.
MLFLOW_WITHOUT_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
# Environment variable with the address of the store that MLflow's page shows. The address may hold
# a password, and all users of the machine can read the command lines of processes.
MLFLOW_STORE = "MLFLOW_BACKEND_STORE_URI"


def page_commands(
    project: Project, folder: Path, dagster_port: int, mlflow_port: int, host: str = LOCAL_HOST
) -> list[list[str]]:
    """Return the command lines of the four processes of `freshet ui`.

    These are Dagster's code server, Dagster's page, Dagster's daemon and MLflow's page. The page
    and the daemon of Dagster reach the code server by a socket. `orchestration.guard` protects
    both pages. The function also writes `workspace.yaml`, which tells Dagster the socket. MLflow's
    page reads the address of its store from `page_variables`.

    Args:
        project: The project.
        folder: Folder for the socket and for `workspace.yaml`. Only this user may have access.
        dagster_port: Port of Dagster's page.
        mlflow_port: Port of MLflow's page.
        host: Address that both pages listen on.
    """
    socket_file = str(folder / "code.sock")
    workspace = folder / "workspace.yaml"
    code_server = {"grpc_server": {"socket": socket_file, "location_name": LOCATION}}
    # The content is JSON, which is valid YAML.
    write_text(workspace, json.dumps({"load_from": [code_server]}))

    dagster_code = [sys.executable, "-m", "dagster", "code-server", "start"]
    dagster_code += ["--socket", socket_file]
    dagster_code += ["--module-name", "orchestration.definitions"]
    dagster_code += ["--location-name", LOCATION]
    dagster_code += ["--log-level", "warning"]

    dagster_page = [sys.executable, "-m", "orchestration.guard"]
    dagster_page += ["--host", host, "--port", str(dagster_port)]
    dagster_page += ["--workspace", str(workspace)]

    dagster_daemon = [sys.executable, "-m", "dagster._daemon", "run"]
    dagster_daemon += ["--workspace", str(workspace)]

    mlflow_page = [sys.executable, "-m", "mlflow", "server", "--app-name", "freshet"]
    mlflow_page += ["--host", host, "--port", str(mlflow_port)]
    mlflow_page += ["--workers", "1"]

    return [dagster_code, dagster_page, dagster_daemon, mlflow_page]


def page_variables(project: Project, **extra: str) -> dict[str, str]:
    """Return the environment of the processes of `freshet ui`, with some further variables."""
    store = {MLFLOW_STORE: tracking_uri(project)}
    return environment(project, **MLFLOW_WITHOUT_JOBS, **store, **extra)


def serve_pages(
    project: Project,
    dagster_port: int,
    mlflow_port: int,
    host: str = LOCAL_HOST,
    token: bool = False,
) -> None:
    """Run both pages until one ends or a stop signal arrives.

    Args:
        project: The project.
        dagster_port: Port of Dagster's page.
        mlflow_port: Port of MLflow's page.
        host: Address that both pages listen on.
        token: Whether the token is also required on this machine's own addresses.

    Raises:
        FreshetError: If a port is taken, or a page ends by itself.
    """
    guard_variables = token_variables(project, host, token)
    require_free_port(dagster_port, "--dagster-port")
    require_free_port(mlflow_port, "--mlflow-port")

    # A build that was killed may have finished stages that MLflow does not know yet.
    record_all(project)
    home = dagster_home(project)
    fail_abandoned_runs(project)

    log = project.state / "pages.log"
    pages = page_addresses(project, dagster_port, mlflow_port, host)
    print(
        f"Dagster: {pages['Dagster']}   MLflow: {pages['MLflow']}   "
        f"(Ctrl-C stops both; their output is in {log})",
        flush=True,
    )
    variables = page_variables(project, DAGSTER_HOME=str(home), **guard_variables)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        commands = page_commands(project, Path(folder), dagster_port, mlflow_port, host)
        # The search page links to both pages.
        write_json(project.state / PAGES_FILE, pages)
        try:
            run_together(commands, project.root, variables, log)
        finally:
            (project.state / PAGES_FILE).unlink(missing_ok=True)


def page_addresses(
    project: Project, dagster_port: int, mlflow_port: int, host: str
) -> dict[str, str]:
    """Return the addresses at which this machine reaches both pages, by the name of the page."""
    return {
        "Dagster": local_address(host, dagster_port),
        "MLflow": local_address(host, mlflow_port) + runs_page(project),
    }


def token_variables(project: Project, host: str, token: bool) -> dict[str, str]:
    """Return the environment variables with which both pages require the token.

    The result is empty if no token is required. Otherwise MLflow's own check of hosts and origins
    is switched off, because MLflow cannot know the names under which other machines reach it.
    `orchestration.guard` checks origins instead.
    """
    if required_token(host, project.token_file, token) is None:
        return {}
    print(
        f"log in with any name, and the token in {project.token_file} as password",
        flush=True,
    )
    return {
        TOKEN_FILE_VARIABLE: str(project.token_file),
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
    }


def require_free_port(port: int, option: str) -> None:
    """Raise `FreshetError` if a program listens on `port`; the message names `option`."""
    with socket.socket() as probe:
        if probe.connect_ex((LOCAL_HOST, port)) == 0:
            raise FreshetError(
                f"port {port} is taken by another program; "
                f"end it, or choose another port with {option}"
            )


def run_together(
    commands: Sequence[Sequence[str]], folder: Path, variables: Mapping[str, str], log: Path
) -> None:
    """Run commands until a stop signal arrives, and leave no process behind.

    SIGINT, SIGTERM and SIGHUP all stop the commands. SIGINT also stops them in a background job,
    although the shell sets background jobs to ignore it.

    Args:
        commands: Command lines, which run at the same time.
        folder: Working directory of the commands.
        variables: Environment of the commands.
        log: File that receives the output of the commands. It is overwritten at each start,
            because it grows fast: Dagster's daemon logs every run of every sensor.

    Raises:
        FreshetError: If a command ends by itself. The other commands are stopped first.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """End the wait for the processes by an exception."""
        # A second Ctrl-C must not interrupt the clean-up.
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, _ignore_signal)
        raise KeyboardInterrupt

    with handle_stop_signals(stop), log.open("wb") as output:
        try:
            for command in commands:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=variables,
                    start_new_session=True,
                    stdout=output,
                    stderr=output,
                )
                processes.append(process)
            ended = _wait_for_first(processes)
            raise FreshetError(
                f"{_program_name(ended)} ended by itself (exit code {ended.returncode}): see {log}"
            )
        except KeyboardInterrupt:
            # A user stops the pages by Ctrl-C, so an interrupt is no error.
            pass
        finally:
            _stop_all(processes)
    print("stopped", file=sys.stderr)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, this is not inherited by child processes."""


def _wait_for_first(processes: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Wait until a process ends, and return it."""
    while True:
        for process in processes:
            if process.poll() is not None:
                return process
        time.sleep(PROCESS_CHECK_SECONDS)


def _program_name(process: subprocess.Popen[bytes]) -> str:
    """Return the name of a program, or of the module that Python runs."""
    program, *arguments = process.args
    if arguments[:1] == ["-m"]:
        return arguments[1]
    return Path(program).name


def _stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate all processes; after `STOP_TIMEOUT_SECONDS`, kill their process groups."""
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    for process in processes:
        process.terminate()
    for process in processes:
        remaining = max(0.0, deadline - time.monotonic())
        with suppress(subprocess.TimeoutExpired):
            process.wait(remaining)
        # Children of the process may have outlived it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
