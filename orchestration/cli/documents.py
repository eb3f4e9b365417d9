"""`freshet documents`: what a package would add, as lines for `freshet add`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def documents(
    packages: Annotated[list[str], typer.Argument(help="Installed Python packages, such as scipy.")],
    limit: Annotated[int | None, typer.Option(min=1, help="So many documents at most, in the order of ids.")] = None,
) -> None:
    """Print the docstrings of installed packages as JSON lines: freshet documents scipy | freshet add -"""
    from itertools import islice

    from orchestration import parameters
    from orchestration.live.rows import package_documents

    project = Project.find()
    found = package_documents(project, parameters.load(project.params_file).corpus, packages)
    for row in islice(found, limit):
        typer.echo(json.dumps(row, ensure_ascii=False))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(documents)
