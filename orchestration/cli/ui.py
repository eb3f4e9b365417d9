"""`freshet ui`: the Dagster and MLflow pages of this project, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.project import Project


def ui(
    dagster_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow UI.")] = 5000,
) -> None:
    """Open the Dagster and MLflow UIs on this machine."""
    from orchestration.cli.user_interfaces import serve

    serve(Project.find(), dagster_port, mlflow_port)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(ui)
