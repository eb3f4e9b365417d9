"""Store results of builds as JSON and write their tables into the page beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json, write_text

START = "<!-- tables -->\n"
END = "<!-- end of tables -->\n"


def write_tables(folder: Path, tables: str, start: str = START, end: str = END) -> None:
    """Replace the text between two marks of the folder's page.

    Args:
        folder: Folder of the experiment.
        tables: New text.
        start: Line before the text.
        end: Line after the text.
    """
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    write_text(page, f"{before}{start}\n{tables}\n{end}{after}")


def measure_projects(
    folder: Path,
    arguments: Sequence[str],
    measure: Callable[[Path], dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], str],
) -> None:
    """Measure projects, and write `result.json` and the tables of an experiment's page.

    Entries of `result.json` that `arguments` does not name stay as they are.

    Args:
        folder: Folder of the experiment.
        arguments: Arguments of the command, each NAME=PROJECT.
        measure: Returns the result of a project.
        tables: Returns the text of the page's tables for all results by name.
    """
    path = folder / "result.json"
    measure_into(path, arguments, measure)
    # Reading the file again gives the tables the order of the file.
    text = tables(read_json(path))
    write_tables(folder, text)
    print(text)


def measure_into(
    path: Path, arguments: Sequence[str], measure: Callable[[Path], dict[str, Any]]
) -> None:
    """Measure projects, and write the result of each one to a JSON file once it is measured.

    Entries of the file that `arguments` does not name stay as they are.

    Args:
        path: The JSON file, which has a result for each name.
        arguments: Arguments of a command, each NAME=PROJECT.
        measure: Returns the result of a project.
    """
    results = read_json(path) if path.is_file() else {}
    for argument in arguments:
        name, _, project = argument.partition("=")
        results[name] = measure(Path(project).resolve())
        write_json(path, results)
