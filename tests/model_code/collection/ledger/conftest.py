"""New databases for the ledger's tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

NUMBERS = itertools.count()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Where no ledger is yet."""
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """The same, in databases of both kinds."""
    if request.param == "sqlite":
        return sqlite_url
    return (
        f"postgresql+psycopg://{request.getfixturevalue('postgresql')(f'ledger_{next(NUMBERS)}')}"
    )
