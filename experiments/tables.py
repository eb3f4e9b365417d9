"""Puts tables that were made of a result into the page beside it."""

from __future__ import annotations

from pathlib import Path

from model_code.files import write_text

START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def write_tables(folder: Path, tables: str) -> None:
    """Put them where the folder's page has its tables."""
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(START)
    write_text(page, before + START + "\n" + tables + "\n" + END + rest.partition(END)[2])
