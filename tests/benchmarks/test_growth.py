"""Guards `freshet bench growth`: exponents of known powers, verdicts at the bound, a picture, and
real measurements.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import growth
from tests.benchmarks.rows import COLUMNS
from tests.tiny_encoder import make_tiny_encoder


@pytest.mark.parametrize("power", [0.0, 0.5, 5 / 3])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [100, 1000, 10_000]

    assert growth.exponent(sizes, [0.03 * size**power for size in sizes]) == pytest.approx(
        power, abs=1e-9
    )


def test_more_than_promised_is_not_met() -> None:
    sizes = [100, 1000, 10_000]
    measured = {
        name: [size ** (promised + 0.09) for size in sizes]
        for name, promised in growth.PROMISED.items()
    }

    assert all(row["met"] for row in growth.exponent_rows(sizes, measured))

    measured = {
        name: [size ** (promised + 0.11) for size in sizes]
        for name, promised in growth.PROMISED.items()
    }
    assert not any(row["met"] for row in growth.exponent_rows(sizes, measured))


def test_every_part_is_measured_at_every_size_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_tiny_encoder(tmp_path / "tiny", ["alpha", "beta"])
    monkeypatch.setattr(growth, "MIN_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(
        growth, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers)
    )
    calls = []
    measure = growth.measure

    def scaled(passages: int, dimension: int, base: str) -> growth.Cost:
        """Measured once; other sizes are made up of it."""
        if not calls:
            calls.append(measure(300, dimension, base))
        return {name: max(value, 1e-6) * passages / 300 for name, value in calls[0].items()}

    monkeypatch.setattr(growth, "measure", scaled)
    found = growth.rows(sizes=[300, 3000], dimension=16, base=str(base), output=tmp_path / "out")
    assert len(found) == len(growth.PROMISED)
    assert len(calls[0]) == len(growth.PROMISED)
    for row in found:
        assert list(row) == COLUMNS
        assert row["ours"] == pytest.approx(1.0)
        assert row["met"] is (row["peer"] + growth.SLACK >= 1.0)
    assert (tmp_path / "out" / "growth.png").read_bytes().startswith(b"\x89PNG")
