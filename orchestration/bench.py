"""The benchmarks by name, and their rows as text."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from model_code.benchmarks.measuring import require_device
from model_code.errors import FreshetError
from model_code.settings import require

BENCHES: Mapping[str, str] = {
    "encode": "model_code.benchmarks.encode",
    "train": "model_code.benchmarks.train",
    "cluster": "model_code.benchmarks.cluster",
    "search": "model_code.benchmarks.search",
    "growth": "model_code.benchmarks.growth.bench",
    "overhead": "orchestration.overhead",
    "token-index": "model_code.benchmarks.token_index",
    "drift": "model_code.benchmarks.drift",
    "incdsi": "model_code.benchmarks.incdsi",
    "faults": "orchestration.benchmarks.faults",
    "freshness": "orchestration.benchmarks.freshness.bench",
}


def run_bench(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark: `{"name", "rows": [{"what", "ours", "peer", "ratio", "goal", "met"}]}`.

    options: arguments of the benchmark's `rows`. FreshetError for a name that is none, and for a device not there.
    """
    if name not in BENCHES:
        raise FreshetError(f"{name!r} is not a benchmark. Benchmarks: {', '.join(BENCHES)}")
    rows = importlib.import_module(BENCHES[name]).rows
    if "device" in options:
        require("device" in inspect.signature(rows).parameters, f"the benchmark {name} has no GPU path")
        require_device(options["device"])
    return {"name": name, "rows": rows(**options)}


def bench_text(found: Mapping[str, Any]) -> str:
    """The rows as a table for people."""
    header = ("what", "ours", "peer", "ratio", "goal", "met")
    rows = [header, *(tuple(_cell(row[name]) for name in header) for row in found["rows"])]
    return _aligned(rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
