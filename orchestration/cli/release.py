"""`freshet promote` and `freshet rollback`: who is champion and what is live, written down, undone at will."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.project import Project


def register(
    retriever: Annotated[str | None, typer.Argument(help="A trained retriever; the best on dev by default.")] = None,
) -> None:
    """Register a built retriever in MLflow as challenger."""
    from orchestration.registry import release, versions

    project = Project.find()
    version = release.register(project, retriever)
    role = "champion already" if versions.holder(project) == version else "challenger"
    typer.echo(f"version {version.version} ({version.retriever}) is the {role}")


def promote() -> None:
    """Make the challenger the champion if it passes the gate, and open its live collection."""
    from orchestration.registry import release

    move = release.promote(Project.find())
    typer.echo(move.summary)
    if not move.passed:
        raise typer.Exit(1)


def rollback(
    generation: Annotated[
        int | None, typer.Option("--generation", min=0, help="Search this live generation again; no champion changes.")
    ] = None,
    retriever: Annotated[str | None, typer.Option(help="With --generation: of another live retriever.")] = None,
) -> None:
    """Make the previous champion the champion again, or go to another live generation."""
    from model_code.settings import require
    from orchestration.registry import release
    from orchestration.still_held import still_held_lines

    require(
        generation is not None or retriever is None,
        f"--retriever {retriever} says whose live generation to search again: name it with --generation; "
        "`freshet rollback` alone changes the champion",
    )
    project = Project.find()
    if generation is None:
        typer.echo(release.rollback(project).summary)
        return
    found = release.rollback_generation(project, generation, retriever)
    typer.echo(f"{found.retriever} is at generation {found.number}, {found.manifest['documents']:,} documents")
    for line in still_held_lines(project, found.retriever):
        typer.echo(line)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (register, promote, rollback):
        app.command()(command)
