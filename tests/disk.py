"""Quick writes for tests that do not cut the power."""

from __future__ import annotations

import pytest


def skip_fsync(patch: pytest.MonkeyPatch) -> None:
    """Let `os.fsync` return at once, while `patch` lasts."""

    def do_nothing(handle: int) -> None:
        """Leave the data in the cache of the operating system."""

    patch.setattr("os.fsync", do_nothing)
