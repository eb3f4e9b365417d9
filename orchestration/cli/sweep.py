"""`freshet sweep`: what a setting brings, by the experiments of DVC."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestration.project import Project


def sweep(
    key: Annotated[str, typer.Argument(help="The setting that the experiments change, such as hierarchy.branching.")],
    metric: Annotated[str | None, typer.Option(help="Another metric than evaluation.main_metric.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object per value and system.")] = False,
) -> None:
    """Show and draw each system's metric by the values of one setting (dvc exp run -S KEY=VALUE)."""
    from orchestration import parameters
    from orchestration.pipeline.sweep import sweep as gather
    from orchestration.pipeline.sweep import write_picture

    project = Project.find()
    shown = metric or parameters.load(project.params_file).evaluation.main_metric
    found = gather(project, key, shown)
    picture = write_picture(found, key, shown, project.state / "sweeps")
    if as_json:
        typer.echo(json.dumps(found.to_dict("records"), indent=2, ensure_ascii=False))
        return
    wide = found.pivot(index="system", columns="value", values=shown)[list(dict.fromkeys(found["value"]))]
    typer.echo(f"{shown} by {key}\n{wide.rename_axis(columns=None).to_string(float_format='{:.3f}'.format)}")
    typer.echo(f"Picture: {picture}")


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(sweep)
