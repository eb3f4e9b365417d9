"""Which tests share a worker when they run in parallel: those of a file, and all end-to-end tests with their builds."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    path = Path(item.path)
    item.add_marker(pytest.mark.xdist_group("end_to_end" if "end_to_end" in path.parts else path.name))
