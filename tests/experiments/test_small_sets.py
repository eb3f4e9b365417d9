"""Tests how the results of the experiment with few judged questions are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.small_sets import run
from experiments.tables import END, START
from model_code.files import read_json


def measure(folder: Path, size: int, seed: int) -> dict[str, Any]:
    system = {"dense": 0.5, "fused": 0.6, "steps": size}
    return {
        "size": size,
        "seed": seed,
        "training_queries": size // 2,
        "base": system,
        "usual": system,
        "adapted": system,
    }


def test_runs_are_added_to_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n\n{START}\nnothing\n\n{END}")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "measure", measure)

    for sizes in ("40,150", "40"):
        monkeypatch.setattr(sys, "argv", ["run", "moss=folder", sizes, "0"])
        run.main()

    results = read_json(tmp_path / "result.json")
    page = (tmp_path / "README.md").read_text()
    assert [(row["set"], row["size"]) for row in results] == [("moss", 40), ("moss", 150)]
    assert page == f"# Title\n\n{START}\n{run.tables(results)}\n{END}"
    assert "| moss | 150 | 75 | 0 | 0.5000 | 0.5000 | 0.5000 | 0.6000 " in page
