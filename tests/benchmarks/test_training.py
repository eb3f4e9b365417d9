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


def test_the_verdict_is_computed():
    slower, faster = (
        training._row("step", 8, 1.2, ours, peer) for ours, peer in [(1.0, 1.1), (1.0, 1.3)]
    )
    assert (slower["met"], faster["met"]) == (False, True)
    assert (faster["ours"], faster["peer"]) == (8.0, 8 / 1.3)
