"""Commands that show and restore freshness: status, retrain, and tools drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import AsJson

if TYPE_CHECKING:
    from model_code.collection.index.retrain_plan import RetrainPlan

# Smallest sample of a pilot, a short training that tells whether a retrain would help.
MIN_PILOT_DOCUMENTS = 20


def status(as_json: AsJson = False) -> None:
    """Show the state of the project.

    Use it to see what is built, which version is champion, and how far the index is behind.

    Example: freshet status
    """
    from orchestration.cli.status import project_status, status_text

    state = project_status(Project.find())
    if as_json:
        print_message(json.dumps(state, indent=2, ensure_ascii=False))
    else:
        print_message(status_text(state))


def retrain(
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the retrain, to resume an interrupted one or to start another one. By "
            "default, it is made of the retriever and its generation, as hce-000007.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the documents and judgements that it would train on."),
    ] = False,
    pilot: Annotated[
        int | None,
        typer.Option(
            min=MIN_PILOT_DOCUMENTS,
            metavar="DOCUMENTS",
            help="Train on this number of documents only, and tell whether a retrain would help.",
        ),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Train nothing: only choose the fusion's weights again."),
    ] = False,
) -> None:
    """Train on all live documents, and promote the result if the gate accepts it.

    Use it if freshet status recommends a retrain. The index is searchable meanwhile.

    Example: freshet retrain --dry-run
    """
    from model_code.collection.index.retrain_plan import plan_retrain, read_planned_generation
    from orchestration.freshness.judged_pairs import retrain_gate_obstacle
    from orchestration.freshness.retrain import next_key
    from orchestration.freshness.retrain import retrain as run_retrain

    project = Project.find()
    if weights:
        if key or pilot is not None:
            raise typer.BadParameter(
                "--weights cannot be combined with --key or --pilot, because it trains nothing"
            )
        _retune(project, dry_run)
        return
    if pilot is not None:
        if dry_run or key:
            raise typer.BadParameter(
                "--pilot cannot be combined with --key or --dry-run, "
                "because a pilot leaves nothing behind"
            )
        _run_pilot(project, pilot)
        return

    plan = plan_retrain(project, key or "")
    name = key or next_key(project, plan)
    if dry_run:
        _show_plan(project, plan, name)
        return

    warning = retrain_gate_obstacle(project, read_planned_generation(project, plan))
    if warning is not None:
        print_message(f"warning: {warning}")
    result = run_retrain(project, name, print_message)
    print_message(result.summary)
    if result.generation is not None:
        print_message(f"live: {result.version.retriever} generation {result.generation}")


def _show_plan(project: Project, plan: RetrainPlan, key: str) -> None:
    """Print what a retrain would train on; exit with code 1 if it cannot be trained or judged."""
    from model_code.collection.index.retrain_plan import read_planned_generation
    from orchestration.freshness.judged_pairs import (
        count_judgements,
        retrain_gate_obstacle,
        retrain_obstacle,
    )

    generation = read_planned_generation(project, plan)
    summary = plan.summary()
    summary["key"] = key
    summary["judgements"] = str(count_judgements(project))
    summary["obstacle"] = retrain_obstacle(project, generation)
    summary["warning"] = retrain_gate_obstacle(project, generation)
    print_message(json.dumps(summary, indent=2))
    if summary["obstacle"] is not None:
        raise typer.Exit(1)


def _retune(project: Project, dry_run: bool) -> None:
    """Choose the weights of the live fusion again, and print the outcome.

    Args:
        project: The project.
        dry_run: Whether to only print the weights that would be chosen.
    """
    from model_code.collection.generations.searcher import Searcher
    from orchestration.freshness.retune import choose_live_weights, run_manual_retune

    if dry_run:
        result = choose_live_weights(project, Searcher.open(project.live))
        print_message(f"a dry run: {result.summary}")
        return
    result = run_manual_retune(project)
    print_message(result.summary)
    if result.generation is not None:
        print_message(f"live: generation {result.generation}")


def _run_pilot(project: Project, documents: int) -> None:
    from orchestration.freshness.pilot import run_manual_pilot

    print_message(run_manual_pilot(project, documents, print_message).summary)


def drift(
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Measure and decide, but record nothing."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report and decision as one JSON object.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report as a page to FILE."),
    ] = None,
) -> None:
    """Compare new documents with old ones, and decide if adding documents is still enough.

    If it is not, the report says which step is due: a retune, a pilot or a retrain. The sensor of
    freshet ui does the same after additions.

    Example: freshet tools drift --explain
    """
    from orchestration.freshness.drift import check_drift

    check = check_drift(Project.find(), record=not explain)
    if check is None:
        if explain:
            raise FreshetError("no document was added since the last drift report")
        raise FreshetError(
            "fewer than drift.minimum_batch documents were added since the last drift report; "
            "use --explain to measure fewer"
        )
    if html is not None:
        write_text(html, check.page)
    if as_json:
        values = check.as_dict()
        values["batch"] = [check.events.first, check.events.last]
        print_message(json.dumps(values, indent=2))
    else:
        print_message(check.text, nl=False)
