"""How much of the files that this process maps is resident."""

from __future__ import annotations

from pathlib import Path

import pytest

SMAPS = Path("/proc/self/smaps")

needs_smaps = pytest.mark.skipif(not SMAPS.is_file(), reason="needs /proc of Linux")


def resident_kilobytes(path: Path) -> int:
    """Return the resident memory of this process that belongs to a mapped file."""
    total = 0
    is_of_file = False
    for line in SMAPS.read_text().splitlines():
        first, *_, last = line.split()
        if not first.endswith(":"):
            is_of_file = last == str(path)
        elif first == "Rss:" and is_of_file:
            total += int(line.split()[1])
    return total
