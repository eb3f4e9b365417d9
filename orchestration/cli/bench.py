"""`freshet bench`: this project against what one would otherwise use, in the same run on the same inputs."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def bench(
    name: Annotated[str, typer.Argument(help="encode, train, cluster, search or overhead.")],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure one part against its peer."""
    from orchestration.bench import bench_text, run_bench

    found = run_bench(name)
    typer.echo(json.dumps(found, indent=2) if as_json else bench_text(found))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(bench)
