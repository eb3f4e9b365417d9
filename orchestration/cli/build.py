"""Commands that set up and build a project: init, ingest, run, plan, settings; and bench."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

import typer

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.tables import table_text

REPOSITORY = Path(__file__).parents[2]
Stages = Annotated[
    list[str] | None,
    typer.Argument(help="Stages such as corpus, train@hce or train; all stages by default."),
]


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project; created if missing.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="A folder of documents, a file of rows, or a data set of a hub. Without it, the "
            "project gets an empty folder for documents.",
        ),
    ] = None,
) -> None:
    """Create a project for your documents.

    Use it once, at the beginning.

    Example: freshet init my-project --from ~/notes
    """
    from orchestration.pipeline.new_project import make_project

    print_message(make_project(folder, source))
    print_message(f"next: cd {shlex.quote(str(folder))} && freshet demo")


def ingest() -> None:
    """Read the source of the corpus, and update corpus.lock.json.

    Use it before freshet run if the source has changed.

    Example: freshet ingest
    """
    from orchestration.pipeline.dvc import initialise
    from orchestration.pipeline.ingest import ingest as ingest_source

    project = Project.find()
    lock = ingest_source(project)
    # DVC is set up here, so that a plain `dvc repro` works next.
    initialise(project)
    print_message(f"corpus.lock.json: {lock['source']}, content {lock['content_hash'][:12]}")


def run(
    stages: Stages = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Edit params.yaml first, as in training.temperature=0.02. Can be repeated.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run the stages even if nothing has changed.")
    ] = False,
) -> None:
    """Run the stages that are out of date, and the stages before them.

    Use it after a change of settings, documents or code.

    Example: freshet run train@hce --set training.temperature=0.02
    """
    from orchestration import parameters
    from orchestration.pipeline import ingest as ingestion
    from orchestration.pipeline import repro
    from orchestration.pipeline import stages as stage_table

    project = Project.find()
    assignments = assignments or []
    with project.lock():
        _, settings = parameters.apply_overrides(project.params_file, assignments)
        known_stages = stage_table.expand(settings.retrievers, settings.fusions)
        targets = []
        for name in stages or []:
            targets += [stage.address for stage in stage_table.find(name, known_stages)]

        # The file is edited last, so that an unknown stage in the command changes nothing.
        parameters.change_settings(project, assignments)
        if ingestion.read_lock(project) is None:
            ingestion.ingest(project)
        finished = list(repro.repro(project, targets, force=force))

    message = f"{len(finished)} stages ran"
    if finished:
        message += f": {', '.join(finished)}"
    print_message(message)


def plan(
    stages: Stages = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show which stages freshet run would run, and why.

    Use it before a long build.

    Example: freshet plan train
    """
    from orchestration.pipeline.repro import plan as make_plan

    planned_stages = make_plan(Project.find(), stages or [])
    if as_json:
        records = [asdict(stage) for stage in planned_stages]
        print_message(json.dumps(records, indent=2, ensure_ascii=False))
        return
    for stage in planned_stages:
        print_message(f"{stage.action:5} {stage.address:24} {'; '.join(stage.reasons)}")


def settings(
    describe: Annotated[
        bool, typer.Option("--describe", help="Print a table. This is the default.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page docs/settings.md.")
    ] = False,
) -> None:
    """Describe every key of params.yaml: type, default, bounds and meaning.

    Use it to look up a setting. freshet run --set KEY=VALUE changes one.

    Example: freshet settings
    """
    from orchestration import parameters

    if markdown:
        print_message(parameters.settings_page(), nl=False)
        return
    rows = parameters.settings_reference()
    if as_json:
        records = [asdict(row) for row in rows]
        print_message(json.dumps(records, indent=2, ensure_ascii=False))
    else:
        columns = ["key", "type", "default", "bounds", "meaning"]
        print_message(table_text(columns, [list(astuple(row)) for row in rows]))


def bench(context: typer.Context) -> None:
    """Run a benchmark, or all benchmarks, from a clone of the repository.

    Use it after a change of the code. freshet bench --help lists the benchmarks.

    Example: freshet bench search
    """
    if not (REPOSITORY / "benchmarks").is_dir():
        raise FreshetError(
            "benchmarks run from a clone of the repository; the installed package has none"
        )
    search_path = str(REPOSITORY)
    if os.environ.get("PYTHONPATH"):
        search_path += os.pathsep + os.environ["PYTHONPATH"]
    variables = dict(os.environ)
    variables["PYTHONPATH"] = search_path

    command = [sys.executable, "-m", "benchmarks", *context.args]
    completed = subprocess.run(command, env=variables)
    raise typer.Exit(completed.returncode)
