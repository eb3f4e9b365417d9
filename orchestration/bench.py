"""The benchmarks by name, and their rows as text."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from model_code.errors import FreshetError

BENCHES: Mapping[str, str] = {
    "encode": "model_code.benchmarks.encode",
    "train": "model_code.benchmarks.train",
    "cluster": "model_code.benchmarks.cluster",
    "search": "model_code.benchmarks.search",
    "overhead": "orchestration.overhead",
    "token-index": "model_code.benchmarks.token_index",
    "drift": "model_code.benchmarks.drift",
    "incdsi": "model_code.benchmarks.incdsi",
    "faults": "orchestration.benchmarks.faults",
    "freshness": "orchestration.benchmarks.freshness.bench",
}


def run_bench(name: str, **options: Any) -> dict[str, Any]:
    """Run one benchmark: `{"name", "rows": [{"what", "ours", "peer", "ratio", "goal", "met"}]}`.

    options: arguments of the benchmark's `rows`.
    """
    if name not in BENCHES:
        raise FreshetError(f"{name!r} is not a benchmark. Benchmarks: {', '.join(BENCHES)}")
    return {"name": name, "rows": importlib.import_module(BENCHES[name]).rows(**options)}


def bench_text(found: Mapping[str, Any]) -> str:
    """The rows as a table for people."""
    header = ("what", "ours", "peer", "ratio", "goal", "met")
    rows = [header, *(tuple(_cell(row[name]) for name in header) for row in found["rows"])]
    return _aligned(rows)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
