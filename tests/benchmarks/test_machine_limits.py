"""Tests of the rates of a machine: they follow from times."""

from __future__ import annotations

import pytest

from benchmarks import machine_limits


def test_rates_follow_from_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "READ_BYTES", 2**20)
    monkeypatch.setitem(machine_limits.SIDE, "cpu", 8)
    monkeypatch.setattr(machine_limits, "seconds", lambda task: task() is None or 0.5)

    assert machine_limits.read_rate() == 2**21
    assert machine_limits.matrix_rate() == 2 * 8**3 / 0.5
