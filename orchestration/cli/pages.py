"""The pages of Dagster and MLflow, started side by side and stopped together."""

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
from model_code.files import write_text
from model_code.project import Project
from orchestration.cli.build import STOP_SIGNALS, stopped_by
from orchestration.guard import TOKEN_FILE, token_to_demand
from orchestration.instance import LOCATION, dagster_home, fail_abandoned_runs
from orchestration.pipeline.dvc import environment
from orchestration.pipeline.runs import record_all, runs_page, tracking_uri

HOST = "127.0.0.1"
GRACE = 20.0  # seconds in which a page may end by itself; Dagster's daemon takes a few
# its job workers are nine processes we never use
MLFLOW_WITHOUT_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def commands(
    project: Project, folder: Path, dagster_port: int, mlflow_port: int, host: str = HOST
) -> list[list[str]]:
    """The command lines: Dagster's code, its page and its daemon, which share the code by a socket,
    and MLflow's page.

    folder: of this user alone; the socket and the file that names it are made there. Both pages
    listen at `host`, behind `orchestration.guard`.
    """
    workspace, socket_file = folder / "workspace.yaml", str(folder / "code.sock")
    code = {"grpc_server": {"socket": socket_file, "location_name": LOCATION}}
    write_text(workspace, json.dumps({"load_from": [code]}))  # JSON is YAML
    python, served = [sys.executable, "-m"], ["--workspace", str(workspace)]
    address = ["--host", host, "--port"]
    return [
        [
            *python,
            "dagster",
            "code-server",
            "start",
            "--socket",
            socket_file,
            "--module-name",
            "orchestration.definitions",
            "--location-name",
            LOCATION,
            "--log-level",
            "warning",
        ],
        [*python, "orchestration.guard", *address, str(dagster_port), *served],
        [*python, "dagster._daemon", "run", *served],
        [
            *python,
            "mlflow",
            "server",
            "--app-name",
            "freshet",
            "--backend-store-uri",
            tracking_uri(project),
            *address,
            str(mlflow_port),
            "--workers",
            "1",
        ],
    ]


def serve_pages(
    project: Project, dagster_port: int, mlflow_port: int, host: str = HOST, token: bool = False
) -> None:
    """Run both until one ends or the user presses Ctrl-C; raises `FreshetError` if a port is taken.

    token: demand it on this machine's own addresses, too.
    """
    guard = _guard_variables(project, host, token)
    for port, option in ((dagster_port, "--dagster-port"), (mlflow_port, "--mlflow-port")):
        require_free(port, option)
    # a build that was killed may have left stages that MLflow does not know yet
    record_all(project)
    home = dagster_home(project)
    fail_abandoned_runs(project)
    pages = f"Dagster: http://{host}:{dagster_port}   MLflow: http://{host}:{mlflow_port}{runs_page(project)}"
    log = project.state / "pages.log"
    print(f"{pages}   (Ctrl-C ends both; what they say: {log})", flush=True)
    variables = environment(project, DAGSTER_HOME=str(home), **MLFLOW_WITHOUT_JOBS, **guard)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        run_together(
            commands(project, Path(folder), dagster_port, mlflow_port, host),
            project.root,
            variables,
            log,
        )


def _guard_variables(project: Project, host: str, token: bool) -> dict[str, str]:
    """What tells both pages to demand the token, and MLflow to leave names and origins, which it
    cannot know, to us.
    """
    if token_to_demand(host, project.token_file, token) is None:
        return {}
    print(f"any name, and as password the token in {project.token_file}, opens them", flush=True)
    return {
        TOKEN_FILE: str(project.token_file),
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
    }


def require_free(port: int, option: str) -> None:
    """Raise `FreshetError` if something listens on `port` already; `option` is how to choose
    another one.
    """
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise FreshetError(
                f"port {port} is taken by another program: end it, or choose another port with {option}"
            )


def run_together(
    commands: Sequence[Sequence[str]], folder: Path, variables: Mapping[str, str], log: Path
) -> None:
    """Run all commands in `folder` until this process is told to stop; then none is left, and one
    line says so.

    SIGINT, SIGTERM and SIGHUP (a closed terminal) all stop them, also in a background job, whose
    shell ignores SIGINT. Raises `FreshetError` if one ends by itself; the others are stopped then,
    too. log: written anew, takes what they print: a daemon tells of every look of every sensor.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:  # a second Ctrl-C must not interrupt the stopping
            signal.signal(each, lambda *_: None)
        raise KeyboardInterrupt

    with stopped_by(stop), log.open("wb") as output:
        try:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=folder,
                        env=variables,
                        start_new_session=True,
                        stdout=output,
                        stderr=output,
                    )
                )
            while not (ended := [process for process in processes if process.poll() is not None]):
                time.sleep(0.2)
            name = Path(ended[0].args[0]).name if ended[0].args[1:2] != ["-m"] else ended[0].args[2]
            raise FreshetError(
                f"{name} ended by itself (exit code {ended[0].returncode}): see {log}"
            )
        except KeyboardInterrupt:
            pass  # that is how it is to end
        finally:
            _stop_all(processes)
    print("stopped", file=sys.stderr)


def _stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask every process to end, and after `GRACE` seconds end what is left of its whole process
    group.
    """
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that outlived it, too
        process.wait()
