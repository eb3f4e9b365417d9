"""What runs until Ctrl-C: the resident service, and the pages of Dagster and MLflow."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from orchestration.project import Project


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's are not protected.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
    query_log: Annotated[
        bool, typer.Option("--query-log", help="Keep the queries in .freshet/queries, on this machine only.")
    ] = False,
) -> None:
    """Serve search, add, update and delete over HTTP, with everything warm; the other commands use it while it runs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a team of threads per request costs ten times more
    from orchestration.live.client import registered

    project = Project.find()
    with registered(project.state) as registration:  # before the slow imports, as it may refuse
        from orchestration.service.server import serve as run

        run(project, host, port, query_log, registration)


def ui(
    dagster_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow UI.")] = 5000,
) -> None:
    """Open the Dagster and MLflow UIs on this machine."""
    from orchestration.cli.pages import serve_pages

    serve_pages(Project.find(), dagster_port, mlflow_port)
