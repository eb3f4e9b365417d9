"""Sources of files: plain tables, a folder in BEIR layout, the snapshot of a live collection that a retrain writes.

Plain files are JSON lines, CSV, TSV or Parquet, plain or .gz; their columns are mapped by `corpus.columns`, and qrels
without a split column are split by `corpus.splits`. In BEIR layout (Thakur et al., 2021,
https://github.com/beir-cellar/beir) lie corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv; queries, qrels and
any of the splits may be absent, and `corpus.qrels` names the folder of judgements where a data set carries several.
A snapshot holds the documents that are found now and the judged queries that still have one, so that what was accepted
once is built again as it is: ids, titles, texts, fields, and the split and answers of each query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from model_code.corpus.rows import Malformed, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import hash_files, renamed, require_columns
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.files import replacing
from model_code.progress import Progress, silent


class FilesSource:
    """Plain files of documents, and optionally of queries and qrels: one per table."""

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


BEIR_SPLITS = ("train", "dev", "test")


class BeirSource:
    """A folder in BEIR layout, each file plain or .gz."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.settings, self.folder = settings, root / str(settings.path)
        documents = self._find("corpus.jsonl")
        if documents is None:
            raise FreshetError(f"{self.folder} holds no corpus.jsonl(.gz); corpus.path must name a BEIR folder")
        self.documents, self.queries = documents, self._find("queries.jsonl")
        paths = {split: self._find(f"{settings.qrels}/{split}.tsv") for split in BEIR_SPLITS}
        self.qrels = {split: path for split, path in paths.items() if path is not None}
        self._check_qrels()

    def describe(self) -> dict[str, Any]:
        """The hash of each file that is read, under its name in the folder.

        `FreshetError` if a table lacks a column that the settings name.
        """
        paths = [self.documents, *([self.queries] if self.queries else []), *self.qrels.values()]
        hashes = hash_files({self._name(path): path for path in paths})
        for table in ("documents", "queries", "qrels"):
            require_columns(self._found(table), table, self.settings.columns, f"{table} of {self.folder.name}")
        return hashes

    def rows(self, table: Table, progress: Progress = silent) -> Iterator[Row | Malformed]:
        """Yield documents or queries from their file, or qrels from the file of each split in turn."""
        for row in self._found(table):
            yield renamed(row, self.settings.columns)

    def _found(self, table: Table) -> Iterator[Row | Malformed]:
        """The rows as the files have them, qrels with their split."""
        if table == "qrels":
            for split, path in self.qrels.items():
                yield from self._judged(path, split)
        elif table == "documents":
            yield from read_rows(self.documents, table, self._name(self.documents))
        elif self.queries:
            yield from read_rows(self.queries, table, self._name(self.queries))

    def _judged(self, path: Path, split: str) -> Iterator[Row | Malformed]:
        known = {self.settings.columns.split: split}
        for row in read_rows(path, "qrels", self._name(path)):
            yield Row("qrels", row.location, {**row.values, **known}) if isinstance(row, Row) else row

    def _find(self, name: str) -> Path | None:
        paths = (self.folder / name, self.folder / f"{name}.gz")
        return next((path for path in paths if path.is_file()), None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _check_qrels(self) -> None:
        if self.queries and not self.qrels and self.settings.qrels != "qrels":
            folder = self.folder / self.settings.qrels
            raise FreshetError(f"{folder} holds no train.tsv, dev.tsv or test.tsv; corpus.qrels names that folder")
        if self.qrels and not self.queries:
            raise FreshetError(f"{self.folder} holds qrels, but no queries.jsonl or queries.jsonl.gz")


SNAPSHOT_COLUMNS: dict[Table, tuple[str, ...]] = {
    "documents": ("id", "title", "text", "fields"),
    "queries": ("id", "text"),
    "qrels": ("query_id", "document_id", "relevance", "split"),
}
SNAPSHOT_OPTIONAL: dict[Table, tuple[str, ...]] = {"queries": ("answers",)}  # left out if no row has a value


class SnapshotSource:
    """The three tables of a snapshot's folder, as `write_snapshot` writes them."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.folder = root / str(settings.path)

    def describe(self) -> dict[str, Any]:
        """The hash of each table."""
        return hash_files({table: self._path(table) for table in SNAPSHOT_COLUMNS})

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
    """Write the tables of a snapshot, rows as dicts with the keys of `SNAPSHOT_COLUMNS`.

    A document's fields, and a query's answers (with the key of `SNAPSHOT_OPTIONAL`), are JSON text.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for table, names in SNAPSHOT_COLUMNS.items():
        rows = list(tables[table])
        held = [name for name in SNAPSHOT_OPTIONAL.get(table, ()) if any(row.get(name) is not None for row in rows)]
        types = [(name, pa.int64() if name == "relevance" else pa.string()) for name in (*names, *held)]
        with replacing(folder / f"{table}.parquet") as aside:
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), aside)
