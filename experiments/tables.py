"""Store results of builds as JSON and write their tables into the page beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json, write_text

START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def write_tables(folder: Path, tables: str) -> None:
    """Replace the tables of the folder's page."""
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(START)
    write_text(page, before + START + "\n" + tables + "\n" + END + rest.partition(END)[2])


def measure_projects(
    folder: Path,
    arguments: Sequence[str],
    measured: Callable[[Path], dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], str],
) -> None:
    """Measure each project that `arguments` names as NAME=PROJECT.

    Other names keep their entries in `result.json`.
    """
    path = folder / "result.json"
    known = read_json(path) if path.is_file() else {}
    for argument in arguments:
        name, _, project = argument.partition("=")
        known[name] = measured(Path(project).resolve())
    write_json(path, known)
    # Reading the file again gives the tables the order of the file.
    told = tables(read_json(path))
    write_tables(folder, told)
    print(told)
