"""Fixtures for tests of more than one folder."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.chromium import browser  # noqa: F401
from tests.postgresql import postgresql  # noqa: F401


def pytest_collection() -> None:
    """Import all tests without garbage collection, because imported objects stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What importing made stays: the garbage collector need not look through its millions of
    objects again.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    """Draw the same random weights in every run. A test that imports torch itself comes later."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
