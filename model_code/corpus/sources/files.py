"""Plain files of documents (and optionally of queries and qrels): JSON lines, CSV, TSV or Parquet, plain or .gz.

Columns are mapped by `corpus.columns`. Qrels without a split column are split by `corpus.splits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model_code.corpus.rows import Malformed, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import hash_files, renamed
from model_code.corpus.sources.columns import require_columns
from model_code.corpus.sources.readers import read_rows
from model_code.progress import Progress, silent


class Source:
    """Reads one file per table."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.columns = settings.columns
        named: dict[Table, str | None] = {
            "documents": settings.path,
            "queries": settings.files.queries,
            "qrels": settings.files.qrels,
        }
        self.paths: dict[Table, Path] = {table: root / path for table, path in named.items() if path is not None}

    def describe(self) -> dict[str, Any]:
        """The hash of each file, under its table and suffix: where it lies does not matter.

        `FreshetError` if a file lacks a column that the settings name.
        """
        hashes = hash_files({f"{table}{''.join(path.suffixes[-2:])}": path for table, path in self.paths.items()})
        for table, path in self.paths.items():
            require_columns(read_rows(path, table, path.name), table, self.columns, path.name)
        return hashes

    def rows(self, table: Table, progress: Progress = silent) -> Iterator[Row | Malformed]:
        """Yield the rows of the table's file, with our names for their columns."""
        if table in self.paths:
            for row in read_rows(self.paths[table], table, self.paths[table].name):
                yield renamed(row, self.columns)
