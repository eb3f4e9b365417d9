"""`freshet ingest`, `run`, `plan` and `demo`: from a source to finished artifacts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from orchestration.project import Project

Stages = Annotated[list[str] | None, typer.Argument(help="Stages such as corpus, train@hce or train; all by default.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Edit params.yaml first, such as training.temperature=0.02."),
]


def ingest() -> None:
    """Look at the corpus's source and renew corpus.lock.json."""
    from orchestration.pipeline.ingest import ingest as renew
    from orchestration.pipeline.repro import initialise

    project = Project.find()
    lock = renew(project)
    initialise(project)  # so that a bare `dvc repro` may follow
    typer.echo(f"corpus.lock.json: {lock['source']}, content {lock['content_hash'][:12]}")


def run(
    stages: Stages = None,
    assignments: Assignments = None,
    force: Annotated[bool, typer.Option(help="Run the stages even if nothing changed.")] = False,
) -> None:
    """Bring stages up to date (those before them too), running only what changed."""
    from orchestration import parameters
    from orchestration.pipeline import ingest as ingestion
    from orchestration.pipeline import repro
    from orchestration.pipeline import stages as table

    project = Project.find()
    with project.lock():
        text, settings = parameters.edited(project.params_file, assignments or [])
        targets = [stage.address for name in stages or [] for stage in table.find(name, settings.retrievers)]
        parameters.save(project.params_file, text)  # only now, as a misspelt stage stops here
        if ingestion.read_lock(project) is None:
            ingestion.ingest(project)
        ended = list(repro.repro(project, targets, force=force))
    typer.echo(f"{len(ended)} stages ran" + (": " + ", ".join(e.address for e in ended) if ended else ""))


def plan(
    stages: Stages = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """Show what `freshet run` would do, and why."""
    from orchestration.pipeline.plan import plan as make_plan

    planned = make_plan(Project.find(), stages or [])
    if as_json:
        typer.echo(json.dumps([asdict(stage) for stage in planned], indent=2, ensure_ascii=False))
        return
    for stage in planned:
        typer.echo(f"{stage.action:5} {stage.address:24} {'; '.join(stage.reasons)}")


def demo() -> None:
    """Run the main job in Dagster, then show results, three searches, and where to look."""
    from orchestration.cli.demo import demo as run_demo

    run_demo(Project.find())


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (ingest, run, plan, demo):
        app.command()(command)
