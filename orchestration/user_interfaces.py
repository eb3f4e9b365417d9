"""Start the Dagster and MLflow pages side by side and stop both together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestration.dagster_home import dagster_home
from orchestration.project import Project
from orchestration.repro import environment
from orchestration.tracking import tracking_uri


def commands(project: Project, dagster_port: int, mlflow_port: int) -> list[list[str]]:
    """The two command lines; both listen on this machine only."""
    bin_folder = Path(sys.executable).parent
    dagster = [str(bin_folder / "dg"), "dev", "--port", str(dagster_port), "--host", "127.0.0.1"]
    mlflow = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(project.root),
              "--host", "127.0.0.1", "--port", str(mlflow_port), "--workers", "1"]  # fmt: skip
    return [dagster, mlflow]


def serve(project: Project, dagster_port: int, mlflow_port: int) -> None:
    """Run both until one ends or the user presses Ctrl-C."""
    home = dagster_home(project)
    print(f"Dagster: http://127.0.0.1:{dagster_port}   MLflow: http://127.0.0.1:{mlflow_port}   (Ctrl-C ends both)")
    variables = environment(project, DAGSTER_HOME=str(home))
    processes = [
        subprocess.Popen(command, cwd=project.root, env=variables)
        for command in commands(project, dagster_port, mlflow_port)
    ]
    try:
        while all(process.poll() is None for process in processes):
            try:
                processes[0].wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
    except KeyboardInterrupt:
        pass
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
