"""`freshet bench`: compare parts of Freshet with alternatives on the same inputs."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.settings import require
from orchestration.cli.tables import table_text

BENCHES: Mapping[str, str] = {
    "encode": "benchmarks.encoding",
    "train": "benchmarks.training",
    "cluster": "benchmarks.clustering",
    "search": "benchmarks.search",
    "growth": "benchmarks.growth",
    "overhead": "benchmarks.overhead",
    "token-index": "benchmarks.token_index",
    "drift": "benchmarks.drift",
    "incdsi": "benchmarks.incdsi",
    "faults": "benchmarks.faults.bench",
    "freshness": "benchmarks.freshness",
    "hostile": "benchmarks.hostile",
    "filters": "benchmarks.filters",
    "peers": "benchmarks.peers.bench",
    "memory": "benchmarks.memory",
}
# Benchmarks that accept each option.
OWNERS = {
    "kills": ("faults",),
    "seconds": ("freshness", "hostile"),
    "passages": ("filters", "freshness", "hostile", "memory", "peers"),
    "large": ("cluster", "growth", "incdsi", "search"),
    "gpu": ("cluster", "encode", "incdsi", "train"),
}
COLUMNS = ("what", "ours", "peer", "ratio", "goal", "met")


def bench(
    name: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(BENCHES)}; without one all of them, which takes hours."),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(
            min=1, help="faults: how many to kill, a tenth retrains, a quarter at the doors."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="freshness, hostile: how long to read under writes."),
    ] = None,
    passages: Annotated[
        int | None,
        typer.Option(
            min=100, help="filters, freshness, hostile, memory, peers: size of the collection."
        ),
    ] = None,
    large: Annotated[
        bool,
        typer.Option(
            "--large", help="cluster, growth, search, incdsi: a million documents, in up to 12 GB."
        ),
    ] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="cluster, encode, train: on a CUDA device.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure one part against its peer, or all of them, one after the other."""
    given = {
        "kills": kills,
        "seconds": seconds,
        "passages": passages,
        "large": large or None,
        "gpu": gpu or None,
    }
    options = {option: value for option, value in given.items() if value is not None}
    for option in options:
        owners = " or ".join(OWNERS[option])
        require(name in OWNERS[option] or name is None, f"--{option} is for the benchmark {owners}")
    results = []
    for each in (name,) if name else OWNERS["gpu"] if gpu else BENCHES:
        arguments = {option: value for option, value in options.items() if each in OWNERS[option]}
        if arguments.pop("gpu", False):
            arguments["device"] = "cuda"
        results.append(run_bench(each, **arguments))
        if not as_json:
            print_rows(results[-1])
    if as_json:
        typer.echo(json.dumps(results[0] if name else results, indent=2))


def run_bench(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark.

    Args:
        name: A key of `BENCHES`.
        options: Arguments of the benchmark's `rows` function.

    Returns:
        `{"name", "rows": [{"what", "ours", "peer", "ratio", "goal", "met"}]}`.

    Raises:
        FreshetError: If the name is unknown or the device is not available.
    """
    if name not in BENCHES:
        raise FreshetError(f"{name!r} is not a benchmark. Benchmarks: {', '.join(BENCHES)}")
    rows = importlib.import_module(BENCHES[name]).rows
    if "device" in options:
        require(
            "device" in inspect.signature(rows).parameters, f"the benchmark {name} has no GPU path"
        )
        require_device(options["device"])
    return {"name": name, "rows": rows(**options)}


def require_device(device: str) -> None:
    """Raise FreshetError if `device` is a GPU and torch sees none."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise FreshetError(
            "--gpu needs a CUDA device, and torch sees none here; leave --gpu out, or run it where "
            "`python -c 'import torch; print(torch.cuda.is_available())'` says True"
        )


def print_rows(result: Mapping[str, Any]) -> None:
    """Print the rows of one benchmark as a table with its name above."""
    rows = [[_cell(row[column]) for column in COLUMNS] for row in result["rows"]]
    typer.echo(f"\n{result['name']}\n{table_text(COLUMNS, rows)}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
