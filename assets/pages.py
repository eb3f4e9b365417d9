"""Elements of asset pages: tables, and pictures as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from model_code.files import folder_bytes, read_json

if TYPE_CHECKING:
    from model_code.evaluation.promotion import Verdict

# Elements of an asset's page in Dagster, such as tables and pictures, by name.
Preview = Mapping[str, "dg.MetadataValue | str"]
# Number of rows at the end of a training's history that a page shows.
SHOWN_HISTORY_ROWS = 10
# Keys of an index's manifest that a page shows.
SHOWN_INDEX_FACTS = (
    "kind",
    "passages",
    "documents",
    "dimension",
    "vectors_per_passage",
    "factory",
    "search",
    "fingerprint",
)


def table(rows: Sequence[Mapping[str, Any]], width: int = 90) -> dg.TableMetadataValue:
    """Return rows as a table with a column for every name that occurs in them.

    Args:
        rows: Cells by column name.
        width: Longer texts are cut to this number of characters.

    >>> table([{"id": "a", "n": 1}, {"id": "b", "note": "x"}]).records[1].data
    {'id': 'b', 'n': '', 'note': 'x'}
    """
    names: list[str] = []
    for row in rows:
        for name in row:
            if name not in names:
                names.append(name)
    records = []
    for row in rows:
        cells = {name: _cell(row.get(name, ""), width) for name in names}
        records.append(dg.TableRecord(cells))
    columns = [dg.TableColumn(name) for name in names]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def _cell(value: Any, width: int) -> str | int | float | bool:
    """Return a number, or a text in one line of at most `width` characters."""
    if isinstance(value, (bool, int, float)):
        return value
    text = str(value).replace("\n", " ")
    if len(text) <= width:
        return text
    return text[: width - 1] + "…"


def first_rows(path: Path, columns: list[str], count: int = 5) -> dg.TableMetadataValue:
    """Return the first rows of a Parquet table."""
    import pyarrow.parquet as pq

    # Reading a batch is cheap, while a whole column of texts may take gigabytes.
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(count, columns=columns), None)
    # The table has no rows if the file yields no batch.
    rows = [] if batch is None else batch.to_pylist()
    return table(rows)


def picture(name: str, png: bytes) -> dg.MarkdownMetadataValue:
    """Return a PNG as inline Markdown, which is visible wherever the UI runs."""
    encoded = base64.b64encode(png).decode()
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{encoded})")


def learning_curve(folder: Path, held_out: Sequence[str] = ()) -> Preview:
    """Return the learning curve of a training: loss and dev metrics by step, and the last rows.

    Args:
        folder: Output of a training, with `history.json`.
        held_out: Names of further values in `history.json`, which were measured on held-out data.
    """
    from model_code.evaluation.plots import training_plot

    rows = read_json(folder / "history.json")
    preview: dict[str, Any] = {}
    plot = training_plot(rows, measured=held_out)
    if plot:
        preview["learning curve"] = picture("training", plot)

    shown_rows = []
    for row in rows[-SHOWN_HISTORY_ROWS:]:
        # The step is added first, so that it becomes the first column of the table.
        shown_row = {"step": row["step"]}
        shown_row.update(row)
        shown_rows.append(shown_row)
    preview["history"] = table(shown_rows)
    return preview


def index_page(folder: Path) -> Preview:
    """Return the facts of an index, and its size on the disk."""
    index = folder / "index"
    manifest = read_json(index / "manifest.json")
    rows = []
    for name in SHOWN_INDEX_FACTS:
        if name in manifest:
            rows.append({"fact": name, "value": str(manifest[name])})

    file_count = sum(1 for path in index.rglob("*") if path.is_file())
    megabytes = folder_bytes(index) / 1e6
    rows.append({"fact": "files", "value": str(file_count)})
    rows.append({"fact": "size", "value": f"{megabytes:,.1f} MB"})
    return {"index": table(rows)}


def verdict_numbers(verdict: Verdict) -> dict[str, int | float]:
    """Return the numbers of a gate's verdict, which Dagster plots over time."""
    numbers: dict[str, int | float] = {"queries": verdict.queries}
    for row in verdict.intervals:
        numbers[f"{row.metric} difference"] = row.difference
        numbers[f"{row.metric} low"] = row.low
        numbers[f"{row.metric} p"] = row.p
        if row.queries_for_gain is not None:
            numbers[f"{row.metric} queries for a gain"] = row.queries_for_gain
    for group, rows in verdict.by_known_queries.items():
        kind = group.replace("_", " ")
        for row in rows:
            numbers[f"{row.metric} difference, documents {kind} queries"] = row.difference
    return numbers
