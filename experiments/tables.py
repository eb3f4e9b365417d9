"""Keeps results of builds, and puts the tables that are made of them into the page beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json, write_text

START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def write_tables(folder: Path, tables: str) -> None:
    """Put them where the folder's page has its tables."""
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(START)
    write_text(page, before + START + "\n" + tables + "\n" + END + rest.partition(END)[2])


def measure_projects(
    folder: Path,
    arguments: Sequence[str],
    measured: Callable[[Path], dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], str],
) -> None:
    """Measure what each of `arguments`, NAME=PROJECT, names; other names keep what `result.json`
    says of them.
    """
    path = folder / "result.json"
    known = read_json(path) if path.is_file() else {}
    for argument in arguments:
        name, _, project = argument.partition("=")
        known[name] = measured(Path(project).resolve())
    write_json(path, known)
    told = tables(read_json(path))  # in the order in which the file holds it
    write_tables(folder, told)
    print(told)
