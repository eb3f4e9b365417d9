"""Which tests share a worker when they run in parallel: those of a file, and all end-to-end tests with their builds."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = Path(item.path)
        item.add_marker(pytest.mark.xdist_group("end_to_end" if "end_to_end" in path.parts else str(path)))
