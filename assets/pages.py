"""What pages of assets show: tables, and pictures as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from model_code.files import read_json

Preview = Mapping[str, "dg.MetadataValue | str"]  # what a page shows, by name

LAST_ROWS = 10  # of a training's history


def table(rows: Sequence[Mapping[str, Any]], width: int = 90) -> dg.TableMetadataValue:
    """Rows as a table of the page, with a column for every name in them; long texts are cut at
    `width` characters.

    >>> table([{"id": "a", "n": 1}, {"id": "b", "note": "x"}]).records[1].data
    {'id': 'b', 'n': '', 'note': 'x'}
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    records = [
        dg.TableRecord({name: _cell(row.get(name, ""), width) for name in names}) for row in rows
    ]
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name) for name in names]))


def _cell(value: Any, width: int) -> str | int | float | bool:
    if isinstance(value, (int, float)):  # a bool is an int
        return value
    text = str(value).replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def first_rows(path: Path, columns: list[str], count: int = 5) -> dg.TableMetadataValue:
    """The first rows of a Parquet table."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:  # by batches: a whole column of texts may be gigabytes
        first = next(file.iter_batches(count, columns=columns), None)
    return table(first.to_pylist() if first else [])


def picture(name: str, png: bytes) -> dg.MarkdownMetadataValue:
    """A PNG as inline text, so that it shows wherever the UI runs."""
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})")


def learning_curve(folder: Path, held_out: Sequence[str] = ()) -> Preview:
    """The curve of `history.json` below `folder`: loss and dev metrics by step.

    held_out: what else was measured between steps.
    """
    from model_code.evaluation.plots import training_plot

    rows = read_json(folder / "history.json")
    plot = training_plot(rows, measured=held_out)
    drawn = {"learning curve": picture("training", plot)} if plot else {}
    return {**drawn, "history": table([{"step": row["step"], **row} for row in rows[-LAST_ROWS:]])}


def index_page(folder: Path) -> Preview:
    """What the index is, and how large."""
    facts = read_json(folder / "index" / "manifest.json")
    names = (
        "kind",
        "passages",
        "documents",
        "dimension",
        "vectors_per_passage",
        "factory",
        "search",
        "fingerprint",
    )
    shown = {name: facts[name] for name in names if name in facts}
    files = [path for path in (folder / "index").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    rows = shown | {"files": len(files), "size": f"{size:,.1f} MB"}
    return {"index": table([{"fact": name, "value": str(value)} for name, value in rows.items()])}
