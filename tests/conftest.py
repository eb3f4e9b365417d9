"""Fixtures for tests of more than one folder."""

from __future__ import annotations

import gc

from tests.chromium import browser  # noqa: F401
from tests.postgresql import postgresql  # noqa: F401


def pytest_collection_finish() -> None:
    """What importing made stays: the garbage collector need not look through its millions of
    objects again.
    """
    gc.collect()
    gc.freeze()
