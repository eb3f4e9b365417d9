"""`freshet gc`: what can be freed, and freeing it."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.project import Project


def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Free it; without this, only say what would be freed.")
    ] = False,
    keep: Annotated[int, typer.Option(min=1, help="Model versions and live generations to keep.")] = 3,
) -> None:
    """Free old models, caches and checkpoints (says what it would free)."""
    from orchestration.garbage import collect, find_garbage

    project = Project.find()
    garbage = find_garbage(project, keep)
    for item in garbage:
        typer.echo(f"{item.megabytes:10.1f} MB  {item.what}")
    if delete:
        collect(project, garbage)
    total = sum(item.megabytes for item in garbage)
    typer.echo(f"{total:10.1f} MB  {'freed' if delete else 'could be freed: freshet gc --delete'}")


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(gc)
