"""Guards what all benchmarks share: verdicts, and turns that a busy moment cannot decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.measurement import (
    best_seconds,
    median_row,
    median_seconds,
    row,
    row_below,
    row_stated,
    skipped,
)


def test_a_row_is_met_or_not() -> None:
    assert row("x", 2.0, 1.0, goal=2.0)["met"] is True
    assert row("x", 1.9, 1.0, goal=2.0)["met"] is False
    assert row_below("x", 1.0, 2.0, most=0.5)["met"] is True
    assert row_below("x", 1.1, 2.0, most=0.5)["met"] is False
    assert [row_stated("x", ours, 1.0, "<= 0.1")["met"] for ours in (0.1, 0.2)] == [True, False]
    assert [row_stated("x", ours, 1.0, "== 0")["met"] for ours in (0.0, 1.0)] == [True, False]
    assert row_stated("x", 1.0, 1.0, "-")["met"] is None
    assert skipped("x", "why") == {
        **dict.fromkeys(row("x", 1, 1, 1)),
        "what": "x",
        "goal": "skipped: why",
    }


def test_median_row_ignores_skipped_runs() -> None:
    rows = [row_below("x", ours, 1.0) for ours in (5.0, 1.0, 3.0)]

    assert median_row(rows)["ours"] == 3.0
    assert median_row([skipped("x", "why"), rows[0]]) == rows[0]
    assert median_row([skipped("x", "why")]) == skipped("x", "why")


@pytest.mark.parametrize(
    ("measure", "seconds"), [(best_seconds, [2.0, 1.0]), (median_seconds, [3.0, 4.0])]
)
def test_tasks_take_turns_after_one_call_each(
    measure: Callable, seconds: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of two tasks that take (3, 1), (2, 7) and (9, 4) seconds."""
    ticks = iter([0, 3, 10, 11, 20, 22, 30, 37, 40, 49, 50, 54])
    calls = []

    def next_tick() -> int:
        return next(ticks)

    def first_task() -> None:
        calls.append("a")

    def second_task() -> None:
        calls.append("b")

    monkeypatch.setattr("time.perf_counter", next_tick)
    measured = measure([first_task, second_task], rounds=3)

    assert measured == seconds
    assert "".join(calls) == "ab" * 4
