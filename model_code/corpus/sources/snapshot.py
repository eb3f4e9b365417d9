"""A snapshot of a live collection: the documents that are found now, and the judged queries that still have one.

Written by a retrain (`write_snapshot`) and read like any other source, so that what was accepted once is built again as
it is: ids, titles, texts, fields, and the split and answers of each query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from model_code.corpus.rows import Malformed, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import hash_files
from model_code.corpus.sources.readers import read_rows
from model_code.files import replacing
from model_code.progress import Progress, silent

COLUMNS: dict[Table, tuple[str, ...]] = {
    "documents": ("id", "title", "text", "fields"),
    "queries": ("id", "text"),
    "qrels": ("query_id", "document_id", "relevance", "split"),
}
OPTIONAL: dict[Table, tuple[str, ...]] = {"queries": ("answers",)}  # columns that are left out if no row has a value


class Source:
    """Reads the three tables of a snapshot's folder."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.folder = root / str(settings.path)

    def describe(self) -> dict[str, Any]:
        """The hash of each table."""
        return hash_files({table: self._path(table) for table in COLUMNS})

    def rows(self, table: Table, progress: Progress = silent) -> Iterator[Row | Malformed]:
        """Yield the rows of a table; fields are JSON in the file."""
        for row in read_rows(self._path(table), table, f"{table}.parquet"):
            if isinstance(row, Row) and table == "documents":
                yield Row(table, row.location, {**row.values, "fields": json.loads(row.values["fields"])})
            else:
                yield row

    def _path(self, table: Table) -> Path:
        return self.folder / f"{table}.parquet"


def write_snapshot(folder: Path, tables: Mapping[Table, Iterable[Mapping[str, Any]]]) -> None:
    """Write the tables of a snapshot, rows as dicts with the keys of `COLUMNS`.

    A document's fields, and a query's answers (with the key of `OPTIONAL`), are JSON text.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for table, names in COLUMNS.items():
        rows = list(tables[table])
        held = [name for name in OPTIONAL.get(table, ()) if any(row.get(name) is not None for row in rows)]
        types = [(name, pa.int64() if name == "relevance" else pa.string()) for name in (*names, *held)]
        with replacing(folder / f"{table}.parquet") as aside:
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), aside)
