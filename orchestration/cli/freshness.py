"""`freshet drift` and `freshet retrain`: how far the collection has moved, and training anew on all of it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def drift(
    explain: Annotated[bool, typer.Option("--explain", help="A dry run: measure and decide, keep nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report and decision as one JSON object.")] = False,
) -> None:
    """Measure what was added since the last report, and decide what it calls for."""
    from orchestration.watching.watch import as_dict, required, watch

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
    from orchestration.retraining.plan import make_plan
    from orchestration.retraining.retrain import retrain as run

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
    from orchestration.retraining.pilot_steps import pilot_by_hand

    if not alone:
        raise typer.BadParameter("a pilot has no --key and no --dry-run: it is deleted when it has answered")
    typer.echo(pilot_by_hand(project, documents, typer.echo).summary)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(drift)
    app.command()(retrain)
