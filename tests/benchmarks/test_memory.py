"""Test that the memory benchmark reads the memory of a process.

Run: python -m pytest tests/benchmarks/test_memory.py
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.memory import resident

MEGABYTES = 64


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has smaps")
def test_an_array_is_resident_and_anonymous():
    before = resident()

    array = np.ones(MEGABYTES * 1_000_000, np.uint8)

    after = resident()
    assert array.nbytes == MEGABYTES * 1_000_000
    for kind in ("resident", "anonymous"):
        assert after[kind] - before[kind] > 0.9 * MEGABYTES
    assert after["anonymous"] < after["resident"]
