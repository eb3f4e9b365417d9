"""Test that the memory benchmark reads the memory of a process.

Run: python -m pytest tests/benchmarks/test_memory.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import resident

MEGABYTES = 64


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has smaps")
def test_an_array_is_resident_and_anonymous(tmp_path: Path) -> None:
    before = resident(tmp_path)

    array = np.ones(MEGABYTES * 1_000_000, np.uint8)

    after = resident(tmp_path)
    assert array.nbytes == MEGABYTES * 1_000_000
    for kind in ("resident", "anonymous"):
        assert after[kind] - before[kind] > 0.9 * MEGABYTES
    assert after["anonymous"] < after["resident"]
    assert after["collection files"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has smaps")
def test_a_mapped_array_counts_among_the_collection_files(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.ones(MEGABYTES * 1_000_000, np.uint8))
    before = resident(tmp_path)
    mapped = np.load(tmp_path / "array.npy", mmap_mode="r")

    assert mapped.sum() == MEGABYTES * 1_000_000

    after = resident(tmp_path)
    assert after["collection files"] - before["collection files"] > 0.9 * MEGABYTES
    assert after["anonymous"] - before["anonymous"] < 0.5 * MEGABYTES
