"""Guards the benches `encode` and `search`: complete rows, verdicts that follow from the numbers, faithful peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_code.benchmarks import encode, search
from model_code.benchmarks.measuring import best_seconds, row
from tests.tiny_encoder import make_tiny_encoder


def check(found: list[dict[str, Any]]) -> None:
    """Every row has the agreed keys, and its verdict is computed from its numbers."""
    for line in found:
        assert list(line) == ["what", "ours", "peer", "ratio", "goal", "met"]
        assert line["ratio"] == pytest.approx(line["ours"] / line["peer"])
        assert line["met"] is (line["ratio"] >= line["goal"])


def test_encode(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    base = make_tiny_encoder(tmp_path / "encoder", encode.mixed_texts(5))
    found = encode.rows(texts=20, base=base, max_tokens=32, rounds=1, device="cpu")
    check(found)
    assert found[-1]["met"]


def test_search() -> None:
    found = search.rows(passages=2000, dimension=16, queries=10, rounds=1)
    check(found)
    assert found[-1]["ours"] >= 0.9


def test_a_row_is_met_or_not() -> None:
    assert row("x", 2.0, 1.0, goal=2.0)["met"] is True
    assert row("x", 1.9, 1.0, goal=2.0)["met"] is False


def test_the_best_of_several_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0, 30.0, 37.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert best_seconds([lambda: None, lambda: None], rounds=2) == [2.0, 1.0]
