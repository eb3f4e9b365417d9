"""What pages of assets show: tables and pictures as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.files import read_json

LAST_ROWS = 10  # of a training's history


def report_of(folder: Path) -> dict[str, Any]:
    """The stage's own report."""
    return read_json(folder / "report.json")


def markdown_table(rows: list[Mapping[str, Any]], width: int = 90) -> str:
    """Rows as a Markdown table, long cells cut at `width` characters.

    >>> print(markdown_table([{"id": "a", "title": "b|c"}]))
    | id | title |
    |---|---|
    | a | b/c |
    """
    if not rows:
        return "(no rows)"
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(name, ""), width) for name in names) + " |")
    return "\n".join(lines)


def _cell(value: Any, width: int) -> str:
    text = str(value).replace("|", "/").replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def first_rows(path: Path, columns: list[str], count: int = 5) -> str:
    """The first rows of a Parquet table as Markdown."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:  # by batches: a whole column of texts may be gigabytes
        first = next(file.iter_batches(count, columns=columns), None)
    return markdown_table(first.to_pylist() if first else [])


def picture(name: str, png: bytes) -> str:
    """A PNG as inline Markdown, so that it shows wherever the UI runs."""
    import base64

    return f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})"


def learning_curve(folder: Path, held_out: Sequence[str] = ()) -> Mapping[str, str]:
    """The curve of `history.json` below `folder`: loss and dev metrics by step, in the style of the report's plots.

    held_out: what else was measured between steps.
    """
    from model_code.evaluation.plots import training_plot

    rows = read_json(folder / "history.json")
    plot = training_plot({folder.name: rows}, measured=held_out)
    drawn = {"learning curve": picture(plot.name, plot.png)} if plot else {}
    return {**drawn, "history": markdown_table(rows[-LAST_ROWS:])}


def index_page(folder: Path) -> Mapping[str, str]:
    """What the index is, and how large."""
    facts = read_json(folder / "index" / "manifest.json")
    names = ("kind", "passages", "documents", "dimension", "vectors_per_passage", "factory", "search", "fingerprint")
    shown = {name: facts[name] for name in names if name in facts}
    files = [path for path in (folder / "index").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    rows = shown | {"files": len(files), "size": f"{size:,.1f} MB"}
    return {"index": markdown_table([{"fact": name, "value": value} for name, value in rows.items()])}
