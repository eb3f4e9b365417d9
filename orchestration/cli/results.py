"""`freshet results`: how every system did on the same queries."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def results(
    as_json: Annotated[
        bool, typer.Option("--json", help="One object per system, each metric with its interval.")
    ] = False,
    over_seeds: Annotated[
        bool, typer.Option("--over-seeds", help="Average NAME, NAME_seed1, ... and add paired differences.")
    ] = False,
) -> None:
    """Show the comparison of all systems on the test queries."""
    from orchestration.pipeline.results import (
        differences_table,
        load_comparison,
        results_over_seeds,
        results_table,
        shown_metrics,
    )

    project = Project.find()
    comparison = results_over_seeds(project) if over_seeds else load_comparison(project)
    if as_json:
        typer.echo(json.dumps(comparison["systems"], indent=2, ensure_ascii=False))
        return
    typer.echo(results_table(comparison))
    if over_seeds:
        for metric in shown_metrics(comparison)[:2]:
            typer.echo(f"\n{metric}\n{differences_table(comparison, metric)}\n")
        for name, part in comparison["groups"].items():
            differences = differences_table(part, comparison["main_metric"])
            typer.echo(f"\n{name} queries\n{results_table(part)}\n{differences}")


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(results)
