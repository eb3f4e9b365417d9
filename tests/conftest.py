"""Fixtures for tests of more than one folder."""

from tests.postgresql import postgresql  # noqa: F401
