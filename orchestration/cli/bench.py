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
        str | None,
        typer.Argument(
            help="encode, train, cluster, search, token-index, incdsi, drift, faults, freshness, growth or overhead; "
            "without one all of them, which takes hours."
        ),
    ] = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="faults: how many processes to kill, a tenth of them retrains.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="freshness: how long to read under writes.")] = None,
    passages: Annotated[int | None, typer.Option(min=100, help="freshness: size of the collection.")] = None,
    large: Annotated[
        bool, typer.Option("--large", help="cluster, growth, search, incdsi: a million documents, in up to 12 GB.")
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="cluster, encode, incdsi, train: on a CUDA device.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure one part against its peer, or all of them, one after the other."""
    from model_code.settings import require
    from orchestration.bench import BENCHES, bench_text, run_bench

    given = {"kills": kills, "seconds": seconds, "passages": passages, "large": large or None, "gpu": gpu or None}
    options = {option: value for option, value in given.items() if value is not None}
    for option in options:
        owners = " or ".join(OWNERS[option])
        require(name in OWNERS[option] or name is None, f"--{option} is for the benchmark {owners}")
    found = []
    for one in (name,) if name else OWNERS["gpu"] if gpu else BENCHES:
        own = {option: value for option, value in options.items() if one in OWNERS[option]}
        if own.pop("gpu", False):
            own["device"] = "cuda"
        found.append(run_bench(one, **own))
        if not as_json:
            typer.echo(bench_text(found[-1]) if name else f"\n{one}\n{bench_text(found[-1])}")
    if as_json:
        typer.echo(json.dumps(found[0] if name else found, indent=2))


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command()(bench)
