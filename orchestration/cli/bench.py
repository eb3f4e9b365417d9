"""`freshet bench`: this project against what one would otherwise use, in the same run on the same inputs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

OWNERS = {"kills": "faults", "seconds": "freshness", "passages": "freshness"}  # whose option it is


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="encode, train, cluster, search, token-index, incdsi, drift, faults, freshness or overhead."
        ),
    ],
    kills: Annotated[int | None, typer.Option(min=1, help="faults: how many processes to kill.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="freshness: how long to read under writes.")] = None,
    passages: Annotated[int | None, typer.Option(min=100, help="freshness: size of the collection.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure one part against its peer."""
    from model_code.settings import require
    from orchestration.bench import bench_text, run_bench

    given = {"kills": kills, "seconds": seconds, "passages": passages}
    options = {option: value for option, value in given.items() if value is not None}
    for option in options:
        require(name == OWNERS[option], f"--{option} is for the benchmark {OWNERS[option]}")
    found = run_bench(name, **options)
    typer.echo(json.dumps(found, indent=2) if as_json else bench_text(found))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(bench)
