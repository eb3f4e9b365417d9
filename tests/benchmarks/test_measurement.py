"""Guards what all benchmarks share: verdicts and turns that a busy moment cannot decide."""

from __future__ import annotations

import pytest

from benchmarks import measurement
from benchmarks.measurement import best_seconds, matrix_rate, median_seconds, read_rate, row, row_below, skipped


def test_a_row_is_met_or_not() -> None:
    assert row("x", 2.0, 1.0, goal=2.0)["met"] is True
    assert row("x", 1.9, 1.0, goal=2.0)["met"] is False
    assert row_below("x", 1.0, 2.0, most=0.5)["met"] is True
    assert row_below("x", 1.1, 2.0, most=0.5)["met"] is False
    assert skipped("x", "why") == dict.fromkeys(row("x", 1, 1, 1)) | {"what": "x", "goal": "skipped: why"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of two tasks that take (3, 1), (2, 7) and (9, 4) seconds."""
    ticks = iter([0, 3, 10, 11, 20, 22, 30, 37, 40, 49, 50, 54])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))


@pytest.mark.usefixtures("clock")
def test_the_best_of_several_rounds_counts() -> None:
    assert best_seconds([lambda: None, lambda: None], rounds=3) == [2.0, 1.0]


@pytest.mark.usefixtures("clock")
def test_the_median_of_several_rounds_counts() -> None:
    assert median_seconds([lambda: None, lambda: None], rounds=3) == [3.0, 4.0]


def test_tasks_take_turns_after_one_call_each() -> None:
    calls = []
    best_seconds([lambda: calls.append("a"), lambda: calls.append("b")], rounds=2)
    assert "".join(calls) == "ab" * 3


def test_rates_follow_from_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "READ_BYTES", 2**20)
    monkeypatch.setitem(measurement.SIDE, "cpu", 8)
    monkeypatch.setattr(measurement, "seconds", lambda task: task() is None or 0.5)
    assert read_rate() == 2**21
    assert matrix_rate() == 2 * 8**3 / 0.5
