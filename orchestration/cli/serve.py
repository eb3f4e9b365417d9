"""What runs until Ctrl-C: the resident service, and the pages of Dagster and MLflow."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from model_code.errors import SettingsError
from model_code.project import Project

HOST = "127.0.0.1"
Host = Annotated[
    str,
    typer.Option(help="Address to listen on; where other machines reach it, a token is demanded."),
]
Token = Annotated[
    bool, typer.Option("--token", help="Demand the token of .freshet/token on this machine, too.")
]


def serve(
    host: Host = HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8765,
    query_log: Annotated[bool, typer.Option(hidden=True)] = False,
    token: Token = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Another site whose pages may ask, as https://app.example; repeatable."),
    ] = None,
) -> None:
    """Serve search, add, update and delete over HTTP, with everything warm; the other commands use
    it while it runs.
    """
    if query_log:
        raise SettingsError(
            "--query-log is gone: POST /feedback keeps what people found, and retrains learn from it"
        )
    # before torch: a team of threads per request costs ten times more
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from orchestration.running_service import register_service

    project = Project.find()
    with register_service(
        project.state
    ) as registration:  # before the slow imports, as it may refuse
        from orchestration.service.server import serve as run

        run(project, host, port, registration, token, cors_origin or ())


def ui(
    dagster_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")
    ] = 3000,
    mlflow_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the MLflow UI.")
    ] = 5000,
    host: Host = HOST,
    token: Token = False,
) -> None:
    """Open the Dagster and MLflow UIs."""
    from orchestration.cli.pages import serve_pages

    serve_pages(Project.find(), dagster_port, mlflow_port, host, token)
