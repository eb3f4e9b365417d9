"""`freshet bench`: this project against what one would otherwise use, in the same run on the same inputs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

OWNERS = {  # whose option it is
    "kills": ("faults",),
    "seconds": ("freshness",),
    "passages": ("freshness",),
    "large": ("cluster", "growth", "incdsi", "search"),
    "gpu": ("cluster", "encode", "incdsi", "train"),
}


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="encode, train, cluster, search, token-index, incdsi, drift, faults, freshness, growth or overhead."
        ),
    ],
    kills: Annotated[int | None, typer.Option(min=1, help="faults: how many processes to kill.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="freshness: how long to read under writes.")] = None,
    passages: Annotated[int | None, typer.Option(min=100, help="freshness: size of the collection.")] = None,
    large: Annotated[
        bool, typer.Option("--large", help="cluster, growth, search, incdsi: a million documents, in up to 12 GB.")
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="cluster, encode, incdsi, train: on a CUDA device.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure one part against its peer."""
    from model_code.settings import require
    from orchestration.bench import bench_text, run_bench

    given = {"kills": kills, "seconds": seconds, "passages": passages, "large": large or None, "gpu": gpu or None}
    options = {option: value for option, value in given.items() if value is not None}
    for option in options:
        owners = " or ".join(OWNERS[option])
        require(name in OWNERS[option], f"--{option} is for the benchmark {owners}")
    if options.pop("gpu", False):
        options["device"] = "cuda"
    found = run_bench(name, **options)
    typer.echo(json.dumps(found, indent=2) if as_json else bench_text(found))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(bench)
