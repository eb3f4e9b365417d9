"""Guards `freshet bench train`: rows in the agreed shape, whose verdicts follow from what was
measured.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import training
from tests.benchmarks.rows import check
from tests.tiny_encoder import make_tiny_encoder


def test_rows_have_the_agreed_shape(tmp_path: Path):
    base = make_tiny_encoder(
        tmp_path / "tiny", ["alpha", "beta", "gamma"], layers=4, max_tokens=128
    )
    rows = training.rows(str(base), pairs=24, batch_size=4, steps=1)

    assert len(rows) == 4
    check(rows)


def test_goal_is_met_by_a_large_lead():
    row = training._row("step", 8, 1.2, 1.0, 1.3)

    assert row["met"] is True
    assert row["ours"] == 8.0
    assert row["peer"] == 8 / 1.3


def test_goal_is_not_met_by_a_small_lead():
    assert training._row("step", 8, 1.2, 1.0, 1.1)["met"] is False
