"""Sources of files: plain tables, a folder in BEIR layout, the snapshot of a live collection that a
retrain writes.

Plain files are JSON lines, CSV, TSV or Parquet, plain or .gz; their columns are mapped by
`corpus.columns`, and qrels without a split column are split by `corpus.splits`. In BEIR layout
(Thakur et al., 2021, https://github.com/beir-cellar/beir) lie corpus.jsonl, queries.jsonl and
qrels/SPLIT.tsv; queries, qrels and any of the splits may be absent, and `corpus.qrels` names the
folder of judgements where a data set carries several. A snapshot holds the documents that are found
now and the judged queries that still have one, so that what was accepted once is built again as it
is: ids, titles, texts, fields, dates, and the split and answers of each query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_code.corpus.rows import RefusedRow, Row, Table, map_columns, require_columns
from model_code.corpus.settings import SPLITS, CorpusSettings
from model_code.corpus.sources.base import describe_files
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.files import atomic_write, hash_path
from model_code.progress import Progress, no_progress


@dataclass(frozen=True)
class _File:
    """A file of a table, what the lock and what locations call it, and the split of its judgements
    if it has one.
    """

    path: Path
    key: str
    name: str
    split: str | None = None


class FilesSource:
    """Plain files of documents, and optionally of queries and qrels: one per table."""

    files: Mapping[Table, list[_File]]

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.columns = settings.columns
        named: dict[Table, str | None] = {
            "documents": settings.path,
            "queries": settings.files.queries,
            "qrels": settings.files.qrels,
        }
        paths = {table: root / path for table, path in named.items() if path is not None}
        self.files = {  # where a file lies does not matter
            table: [_File(path, f"{table}{''.join(path.suffixes[-2:])}", path.name)]
            for table, path in paths.items()
        }

    def describe(self) -> dict[str, Any]:
        """The hash of each file that is read. `FreshetError` if a table lacks a column that the
        settings name.
        """
        hashes = self._hashes()
        for table, files in self.files.items():
            require_columns(
                self._source_rows(table),
                table,
                self.columns,
                ", ".join(file.name for file in files),
            )
        return hashes

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of the table's files in turn, with our names for their columns."""
        for row in self._source_rows(table):
            yield map_columns(row, self.columns)

    def _hashes(self) -> dict[str, Any]:
        files = {file.key: file.path for files in self.files.values() for file in files}
        if missing := [path for path in files.values() if not path.exists()]:
            raise FreshetError(
                f"{missing[0]} does not exist; the settings under `corpus` in params.yaml name it"
            )
        return describe_files({name: hash_path(path) for name, path in sorted(files.items())})

    def _source_rows(self, table: Table) -> Iterator[Row | RefusedRow]:
        """The rows as the files have them, judgements with the split of their file."""
        for file in self.files.get(table, ()):
            label = {self.columns.split: file.split} if file.split else {}
            for row in read_rows(file.path, table, file.name):
                yield (
                    Row(table, row.location, {**row.values, **label})
                    if label and isinstance(row, Row)
                    else row
                )


class BeirSource(FilesSource):
    """A folder in BEIR layout, each file plain or .gz."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.columns, folder = settings.columns, root / str(settings.path)

        def files(plain: str, split: str | None = None) -> list[_File]:
            names = [name for name in (plain, f"{plain}.gz") if (folder / name).is_file()]
            return [_File(folder / name, name, name, split) for name in names[:1]]

        qrels = [
            file
            for split in reversed(SPLITS)
            for file in files(f"{settings.qrels}/{split}.tsv", split)
        ]
        self.files = {
            "documents": files("corpus.jsonl"),
            "queries": files("queries.jsonl"),
            "qrels": qrels,
        }
        if not self.files["documents"]:
            raise FreshetError(
                f"{folder} holds no corpus.jsonl(.gz); corpus.path must name a BEIR folder"
            )
        if self.files["queries"] and not qrels and settings.qrels != "qrels":
            judged = folder / settings.qrels
            raise FreshetError(
                f"{judged} holds no train.tsv, dev.tsv or test.tsv; corpus.qrels names that folder"
            )
        if qrels and not self.files["queries"]:
            raise FreshetError(f"{folder} holds qrels, but no queries.jsonl or queries.jsonl.gz")


SNAPSHOT_COLUMNS: dict[Table, tuple[str, ...]] = {
    "documents": ("id", "title", "text", "fields"),
    "queries": ("id", "text"),
    "qrels": ("query_id", "document_id", "relevance", "split"),
}
# Left out where no row has a value.
SNAPSHOT_OPTIONAL: dict[Table, tuple[str, ...]] = {"documents": ("date",), "queries": ("answers",)}


class SnapshotSource(FilesSource):
    """The three tables of a snapshot's folder, as `write_snapshot` writes them."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        folder = root / str(settings.path)
        self.files = {
            table: [_File(folder / f"{table}.parquet", table, f"{table}.parquet")]
            for table in SNAPSHOT_COLUMNS
        }

    def describe(self) -> dict[str, Any]:
        """The hash of each table."""
        return self._hashes()

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table; fields are JSON in the file."""
        for row in self._source_rows(table):
            if isinstance(row, Row) and table == "documents":
                yield Row(
                    table, row.location, {**row.values, "fields": json.loads(row.values["fields"])}
                )
            else:
                yield row


def write_snapshot(folder: Path, tables: Mapping[Table, Iterable[Mapping[str, Any]]]) -> None:
    """Write the tables of a snapshot, rows as dicts with the keys of `SNAPSHOT_COLUMNS` and
    `SNAPSHOT_OPTIONAL`.

    A document's fields, and a query's answers, are JSON text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for table, names in SNAPSHOT_COLUMNS.items():
        rows = list(tables[table])
        optional = [
            name
            for name in SNAPSHOT_OPTIONAL.get(table, ())
            if any(row.get(name) is not None for row in rows)
        ]
        types = [
            (name, pa.int64() if name == "relevance" else pa.string())
            for name in (*names, *optional)
        ]
        with atomic_write(folder / f"{table}.parquet") as aside:
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), aside)
