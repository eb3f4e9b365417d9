"""`freshet bench`: compare parts of Freshet with alternatives on the same inputs."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.settings import require
from orchestration.cli.tables import table_text

# Module of each benchmark, by its name on the command line.
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
    "rows-with-queries": "benchmarks.rows_with_queries",
    "faults": "benchmarks.faults.bench",
    "freshness": "benchmarks.freshness",
    "writers": "benchmarks.writers",
    "clients": "benchmarks.clients",
    "hostile": "benchmarks.hostile",
    "filters": "benchmarks.filters",
    "peers": "benchmarks.peers.bench",
    "memory": "benchmarks.memory",
    "collection": "benchmarks.collection",
}
# Benchmarks that accept each option.
OWNERS = {
    "kills": ("faults", "writers"),
    "seconds": ("clients", "freshness", "hostile", "writers"),
    "passages": (
        "clients",
        "collection",
        "filters",
        "freshness",
        "hostile",
        "memory",
        "peers",
        "rows-with-queries",
        "writers",
    ),
    "data": ("rows-with-queries",),
    "runs": ("writers",),
    "inline": ("writers",),
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
            min=1,
            help="faults: number of processes to kill. A tenth are retrains; a quarter are the "
            "service, the inbox and syncs. writers: how often to kill the service.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="clients, freshness, hostile, writers: how long to search."),
    ] = None,
    passages: Annotated[
        int | None,
        typer.Option(
            min=100,
            help="clients, collection, filters, freshness, hostile, memory, peers, "
            "rows-with-queries, writers: size of the collection.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="rows-with-queries: folder of a collection in BEIR layout."),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=1, help="writers: number of runs, whose median is printed; 1 by default."),
    ] = None,
    inline: Annotated[
        bool,
        typer.Option("--inline", help="writers: with live.apply_process false, not the default."),
    ] = False,
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
    """Compare one part of Freshet with an alternative, or all parts, one after the other."""
    options: dict[str, Any] = {}
    if kills is not None:
        options["kills"] = kills
    if seconds is not None:
        options["seconds"] = seconds
    if passages is not None:
        options["passages"] = passages
    if data is not None:
        options["data"] = data
    if runs is not None:
        options["runs"] = runs
    if inline:
        options["inline"] = True
    if large:
        options["large"] = True
    if gpu:
        options["gpu"] = True
    for option in options:
        owners = " or ".join(OWNERS[option])
        accepted = name is None or name in OWNERS[option]
        require(accepted, f"--{option} is for the benchmark {owners}")

    results = []
    for benchmark in _select_benchmarks(name, gpu):
        arguments = {
            option: value for option, value in options.items() if benchmark in OWNERS[option]
        }
        if arguments.pop("gpu", False):
            arguments["device"] = "cuda"
        result = run_bench(benchmark, **arguments)
        results.append(result)
        if not as_json:
            print_rows(result)

    if as_json:
        output = results[0] if name else results
        typer.echo(json.dumps(output, indent=2))


def _select_benchmarks(name: str | None, gpu: bool) -> list[str]:
    """Return the named benchmark. Without a name, return all benchmarks that the device allows."""
    if name is not None:
        return [name]
    if gpu:
        return list(OWNERS["gpu"])
    return list(BENCHES)


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
        has_gpu_path = "device" in inspect.signature(rows).parameters
        require(has_gpu_path, f"the benchmark {name} has no GPU path")
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
    lines = []
    for row in result["rows"]:
        lines.append([_format_cell(row[column]) for column in COLUMNS])
    typer.echo(f"\n{result['name']}\n{table_text(COLUMNS, lines)}")


def _format_cell(value: Any) -> str:
    """Return the text of a cell: "-" for None, and four digits of a float."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
