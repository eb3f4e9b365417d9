"""`freshet compare`: effectiveness against what it costs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def compare(
    queries: Annotated[int, typer.Option(min=1, help="How many judged queries to time, one at a time.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Time every built system, set its costs beside its effectiveness, and say which to choose."""
    from orchestration.pipeline.cost_report import as_dict, choice_table, cost_table, lead, table_text, write_report
    from orchestration.pipeline.costs import compare_costs

    project = Project.find()
    found = compare_costs(project, queries)
    page = write_report(found, project.state / "comparison")
    if as_json:
        typer.echo(json.dumps(as_dict(found), indent=2, ensure_ascii=False))
        return
    typer.echo(f"{lead(found)}\n\n{table_text(cost_table(found))}\n\n{table_text(choice_table(found))}\n")
    typer.echo(f"Report with plots: {page}")


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(compare)
