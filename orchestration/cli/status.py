"""`freshet status`: what is built, who is champion, what is live."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def status(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Show the state of the project."""
    from orchestration.cli.project_status import project_status, status_text

    found = project_status(Project.find())
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else status_text(found))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(status)
