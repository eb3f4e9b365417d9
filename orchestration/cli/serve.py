"""Commands that run until Ctrl-C: the HTTP service, and the pages of Dagster and MLflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.follow import open_follower
from orchestration.cli.options import LOCAL_HOST

MAX_PORT = 65_535
Host = Annotated[
    str,
    typer.Option(help="Address to listen on. If other machines reach it, a token is required."),
]
Token = Annotated[
    bool,
    typer.Option("--token", help="Require the token in .freshet/token on this machine, too."),
]


def serve(
    host: Host = LOCAL_HOST,
    port: Annotated[
        int, typer.Option(min=0, max=MAX_PORT, help="Port to listen on; 0 takes a free one.")
    ] = 8765,
    token: Token = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Another site whose pages may send requests, as https://app.example. "
            "Can be repeated."
        ),
    ] = None,
    search_processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of processes that search; live.search_processes by default.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            help="Serve a copy of the collection that freshet publish wrote to this place."
        ),
    ] = None,
    copy: Annotated[
        Path, typer.Option(help="With --follow: folder of the copy; created if missing.")
    ] = Path("following"),
    follow_name: Annotated[
        str | None,
        typer.Option(help="With --follow: name of the follower; that of the machine by default."),
    ] = None,
    accept_epoch: Annotated[
        str | None,
        typer.Option(
            help="With --follow: accept another writer of the place. The error message names its "
            "epoch (identity)."
        ),
    ] = None,
) -> None:
    """Serve search and changes of documents over HTTP.

    Use it if searches and additions have to be fast: the encoder stays loaded, and the other
    commands use the service while it runs. With --follow, it serves a copy of a collection that
    another machine changes.

    Example: freshet serve --port 8765
    """
    # Requests run at the same time, each in its own thread. If NumPy and PyTorch also used several
    # threads per request, requests would take ten times longer. Both read these variables at their
    # import. The second one is set for all commands in a container, and goes before the first.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    from orchestration.running_service import NoRegistration, register_service

    if follow is not None:
        follower = open_follower(follow, copy, follow_name, accept_epoch)
        with register_service(follower.project.state) as registration:
            from orchestration.service.server import serve as run_service

            run_service(
                follower.project,
                host,
                port,
                registration,
                token,
                cors_origin or (),
                follower,
                search_processes,
            )
        return

    project = Project.find()
    if project.is_follower:
        raise FreshetError(
            f"{project.root} is a copy of a published collection; serve it with freshet serve "
            "--follow TARGET, with the place that it was copied from"
        )
    if project.is_read_only:
        from orchestration.service.server import serve as run_service

        print_message(
            f"note: {project.root} cannot be written by this user, so that documents are searched "
            "and not changed; commands do not find this service"
        )
        run_service(
            project,
            host,
            port,
            NoRegistration(),
            token,
            cors_origin or (),
            search_processes=search_processes,
        )
        return

    # Registering refuses a second service of the project. It comes before the slow imports.
    with register_service(project.state) as registration:
        from orchestration.service.server import serve as run_service

        run_service(
            project,
            host,
            port,
            registration,
            token,
            cors_origin or (),
            search_processes=search_processes,
        )


def ui(
    dagster_port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="Port of Dagster's page.")
    ] = 3000,
    mlflow_port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="Port of MLflow's page.")
    ] = 5000,
    host: Host = LOCAL_HOST,
    token: Token = False,
) -> None:
    """Open the pages of Dagster and MLflow.

    Use it to look at builds and experiments, and to run the sensors that keep the index fresh.

    Example: freshet ui
    """
    from orchestration.cli.pages import serve_pages

    serve_pages(Project.find(), dagster_port, mlflow_port, host, token)
