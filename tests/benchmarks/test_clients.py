"""Test that `freshet bench clients` compares search processes with threads.

Run: python -m pytest tests/benchmarks/test_clients.py
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.clients import Log, _result_rows, rows
from tests.benchmarks.rows import COLUMNS
from tests.tiny_encoder import make_tiny_encoder


def test_rows_compare_rates_and_latencies() -> None:
    ours = Log([0.01] * 40, seconds=2.0, service_seconds=0.4, client_seconds=0.04)
    peer = Log([0.02] * 20, seconds=2.0, service_seconds=0.2, client_seconds=0.02)

    result = {row["what"]: row for row in _result_rows(4, ours, peer)}

    assert result["4 clients, queries/s"]["ratio"] == 2.0
    assert result["4 clients, queries/s"]["met"]
    assert result["4 clients, p95 ms"]["ratio"] == 0.5
    assert result["4 clients, processor ms per query"]["ours"] == 10.0


def test_both_services_are_measured(tmp_path: Path) -> None:
    base = make_tiny_encoder(tmp_path / "base", ["an array", "a list of words"])

    result = rows(passages=100, seconds=0.2, base=base, processes=1, rounds=1)

    values = {row["what"]: row for row in result}
    assert all(set(row) == set(COLUMNS) for row in result)
    assert values["4 clients, queries/s"]["ours"] > 0
    assert values["4 clients, queries/s"]["peer"] > 0
    # The first service has one process more.
    assert values["memory of all processes, MB"]["ratio"] > 1
