"""Who is champion and what is live: register, promote, rollback, retrain, status; among the tools drift."""

from __future__ import annotations

import json
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
    live = release.rollback_generation(project, generation, retriever)
    typer.echo(f"{live.retriever} is at generation {live.number}, {live.manifest['documents']:,} documents")
    for line in still_held_lines(project, live.retriever):
        typer.echo(line)


def drift(
    explain: Annotated[bool, typer.Option("--explain", help="A dry run: measure and decide, keep nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report and decision as one JSON object.")] = False,
) -> None:
    """Measure what was added since the last report, and decide what it calls for."""
    from orchestration.freshness.drift import as_dict, required, watch

    watched = required(watch(Project.find(), record=not explain), record=not explain)
    typer.echo(json.dumps(as_dict(watched), indent=2) if as_json else watched.text, nl=as_json)


def retrain(
    key: Annotated[str | None, typer.Option(help="Name of the retrain; one that was cut off goes on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained on, and stop.")] = False,
    pilot: Annotated[
        int | None, typer.Option(min=20, help="Train on so many documents only, and say whether a retrain is due.")
    ] = None,
) -> None:
    """Train on everything that is live; promote the result if old documents keep and new ones gain."""
    from orchestration.freshness.retrain import make_plan
    from orchestration.freshness.retrain import retrain as run

    project = Project.find()
    if pilot is not None:
        _pilot(project, pilot, alone=not (dry_run or key))
        return
    plan = make_plan(project, key or "")
    name = key or f"{plan.retriever}-{plan.generation:06d}"
    if dry_run:
        typer.echo(json.dumps(plan.summary() | {"key": name}, indent=2))
        return
    done = run(project, name, typer.echo)
    typer.echo(done.summary)
    if done.generation is not None:
        typer.echo(f"live: {done.challenger.retriever} generation {done.generation}")


def _pilot(project: Project, documents: int, alone: bool) -> None:
    from orchestration.freshness.pilot import pilot_by_hand

    if not alone:
        raise typer.BadParameter("a pilot has no --key and no --dry-run: it is deleted when it has answered")
    typer.echo(pilot_by_hand(project, documents, typer.echo).summary)


def status(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Show the state of the project."""
    from orchestration.cli.status import project_status, status_text

    state = project_status(Project.find())
    typer.echo(json.dumps(state, indent=2, ensure_ascii=False) if as_json else status_text(state))
