"""`freshet results`: how every system did on the same queries."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def results(
    as_json: Annotated[bool, typer.Option("--json", help="One object per system, each metric with its interval.")] = False,
) -> None:
    """Show the comparison of all systems on the test queries."""
    from orchestration.results import load_results, results_table

    found = load_results(Project.find())
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else results_table(Project.find()))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(results)
