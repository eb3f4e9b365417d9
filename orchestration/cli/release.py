"""`freshet promote` and `freshet rollback`: who is champion, decided by a gate, written down, undone at will."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.project import Project


def register(
    retriever: Annotated[str | None, typer.Argument(help="A trained retriever; the best on dev by default.")] = None,
) -> None:
    """Register a built retriever in MLflow as challenger."""
    from orchestration import registry, release

    project = Project.find()
    version = release.register(project, retriever)
    role = "champion already" if registry.holder(project) == version else "challenger"
    typer.echo(f"version {version.version} ({version.retriever}) is the {role}")


def promote() -> None:
    """Make the challenger the champion if it passes the gate, and open its live collection."""
    from orchestration import release

    move = release.promote(Project.find())
    typer.echo(move.summary)
    if not move.passed:
        raise typer.Exit(1)


def rollback() -> None:
    """Make the previous champion the champion again."""
    from orchestration import release

    typer.echo(release.rollback(Project.find()).summary)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (register, promote, rollback):
        app.command()(command)
