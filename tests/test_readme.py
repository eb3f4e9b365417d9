"""Guards that the README stays true: its links lead somewhere, its commands exist.

Run: python -m pytest tests/test_readme.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    from typer.main import get_command

    from orchestration.cli.app import app

    known = set(get_command(app).commands)
    used = set(re.findall(r"`freshet ([a-z-]+)", page.read_text()))
    assert used <= known, f"{page.name} names commands that do not exist: {used - known}"
