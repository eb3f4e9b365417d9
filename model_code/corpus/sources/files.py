"""Sources that are files of rows: plain tables, a BEIR folder, and the snapshot of a retrain."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_code.corpus.rows import ORIGIN, RefusedRow, Row, Table, map_columns, require_columns
from model_code.corpus.settings import SPLITS, CorpusSettings
from model_code.corpus.sources.base import describe_files
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.files import atomic_write, hash_path
from model_code.progress import Progress, no_progress


@dataclass(frozen=True)
class _TableFile:
    """A file that holds a table, or one split of the table of qrels.

    Attributes:
        path: Path of the file.
        key: Name of the file in `corpus.lock.json`.
        name: Name of the file in the locations of its rows.
        split: Split of all judgements in the file; None if its rows state splits themselves.
    """

    path: Path
    key: str
    name: str
    split: str | None = None


class FilesSource:
    """Plain files of documents, and optionally of queries and qrels, one per table.

    Files are JSON lines, CSV, TSV or Parquet, plain or .gz. `corpus.columns` maps their columns,
    and `corpus.splits` splits qrels without a split column.
    """

    files: Mapping[Table, list[_TableFile]]

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Find the files that the settings name.

        Args:
            settings: Settings of the corpus.
            root: Folder that relative paths are resolved against.
            locked: Not used, because a file has one version only. `describe` shows if it changed.
        """
        self.columns = settings.columns
        self.files = {}
        paths: dict[Table, str | None] = {
            "documents": settings.path,
            "queries": settings.files.queries,
            "qrels": settings.files.qrels,
        }
        for table, name in paths.items():
            if name is None:
                continue
            path = root / name
            # The lock names the table and the format instead of the path, so that users may move or
            # rename the file.
            key = f"{table}{''.join(path.suffixes[-2:])}"
            self.files[table] = [_TableFile(path, key, path.name)]

    def describe(self) -> dict[str, Any]:
        """Return the hash of each file.

        Raises:
            FreshetError: If a file is missing, or a table lacks a column that the settings name.
        """
        description = self._describe_hashes()
        for table, files in self.files.items():
            names = ", ".join(file.name for file in files)
            require_columns(self._source_rows(table), table, self.columns, names)
        return description

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of the table's files in turn, with our names for their columns."""
        for row in self._source_rows(table):
            yield map_columns(row, self.columns)

    def _describe_hashes(self) -> dict[str, Any]:
        """Return the description of the source, which consists of the hashes of its files.

        Raises:
            FreshetError: If a file is missing.
        """
        hashes: dict[str, str] = {}
        for files in self.files.values():
            for file in files:
                if not file.path.exists():
                    raise FreshetError(
                        f"{file.path} does not exist; the settings under `corpus` in params.yaml "
                        "name it"
                    )
                hashes[file.key] = hash_path(file.path)
        return describe_files(dict(sorted(hashes.items())))

    def _source_rows(self, table: Table) -> Iterator[Row | RefusedRow]:
        """Yield the rows with the file's column names. A split of the file is added to its rows."""
        for file in self.files.get(table, ()):
            for row in read_rows(file.path, table, file.name):
                if file.split is None or isinstance(row, RefusedRow):
                    yield row
                    continue
                values = dict(row.values)
                values[self.columns.split] = file.split
                yield Row(table, row.location, values, row.notes)


class BeirSource(FilesSource):
    """A folder in BEIR layout, each file plain or .gz.

    The folder holds corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (Thakur et al., 2021,
    https://github.com/beir-cellar/beir). Queries, qrels and any of the splits may be absent.
    If a data set has several folders of judgements, `corpus.qrels` names the one to read.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Find the files of the folder; for the arguments see `FilesSource`.

        Raises:
            FreshetError: If there is no file of documents, or one of qrels and queries is missing.
        """
        self.columns = settings.columns
        folder = root / str(settings.path)

        documents = _find_file(folder, "corpus.jsonl")
        queries = _find_file(folder, "queries.jsonl")
        qrels: list[_TableFile] = []
        for split in reversed(SPLITS):
            qrels.extend(_find_file(folder, f"{settings.qrels}/{split}.tsv", split))

        if not documents:
            raise FreshetError(
                f"{folder} holds no corpus.jsonl(.gz); corpus.path must name a BEIR folder"
            )
        # A BEIR folder may have no judgements. A folder of judgements that the user named must not
        # be empty.
        if queries and not qrels and settings.qrels != "qrels":
            raise FreshetError(
                f"{folder / settings.qrels} holds no train.tsv, dev.tsv or test.tsv; corpus.qrels "
                "names that folder"
            )
        if qrels and not queries:
            raise FreshetError(f"{folder} holds qrels, but no queries.jsonl or queries.jsonl.gz")
        self.files = {"documents": documents, "queries": queries, "qrels": qrels}


def _find_file(folder: Path, name: str, split: str | None = None) -> list[_TableFile]:
    """Return a list with the file of this name, plain or .gz; an empty list if there is none."""
    for file_name in (name, f"{name}.gz"):
        if (folder / file_name).is_file():
            return [_TableFile(folder / file_name, file_name, file_name, split)]
    return []


# Columns of each table of a snapshot, by our names.
SNAPSHOT_COLUMNS: dict[Table, tuple[str, ...]] = {
    "documents": ("id", "title", "text", "fields"),
    "queries": ("id", "text"),
    "qrels": ("query_id", "document_id", "relevance", "split"),
}

# Further columns, which a table of a snapshot has only if one of its rows has a value.
SNAPSHOT_OPTIONAL: dict[Table, tuple[str, ...]] = {
    "documents": ("date", "queries"),
    "queries": ("answers",),
    "qrels": (ORIGIN,),
}


class SnapshotSource(FilesSource):
    """The source of a retrain: three tables in a folder that `write_snapshot` wrote.

    A snapshot holds the documents that are live when a retrain begins, and the judged queries that
    have a relevant document among them. The build takes over all its values unchanged.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Name the three tables in the folder; for the arguments see `FilesSource`."""
        folder = root / str(settings.path)
        self.files = {}
        for table in SNAPSHOT_COLUMNS:
            name = f"{table}.parquet"
            self.files[table] = [_TableFile(folder / name, table, name)]

    def describe(self) -> dict[str, Any]:
        """Return the hash of each table."""
        return self._describe_hashes()

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table.

        The columns `fields` and `queries` of documents are parsed from JSON.
        """
        file = self.files[table][0]
        for row in read_rows(file.path, table, file.name):
            if isinstance(row, RefusedRow) or table != "documents":
                yield row
                continue
            values = dict(row.values)
            for name in ("fields", "queries"):
                if values.get(name) is not None:
                    values[name] = json.loads(values[name])
            yield Row(table, row.location, values)


def write_snapshot(folder: Path, tables: Mapping[Table, Iterable[Mapping[str, Any]]]) -> None:
    """Write the tables of a snapshot.

    Args:
        folder: Folder to write to.
        tables: The rows of each table. A row has the keys of `SNAPSHOT_COLUMNS`, and may have the
            keys of `SNAPSHOT_OPTIONAL`. The fields and queries of a document, and the answers of a
            query, are JSON text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for table, required_names in SNAPSHOT_COLUMNS.items():
        rows = list(tables[table])
        names = list(required_names)
        for name in SNAPSHOT_OPTIONAL.get(table, ()):
            if any(row.get(name) is not None for row in rows):
                names.append(name)

        columns: list[tuple[str, pa.DataType]] = []
        for name in names:
            column_type = pa.int64() if name == "relevance" else pa.string()
            columns.append((name, column_type))
        arrow_table = pa.Table.from_pylist(rows, schema=pa.schema(columns))
        with atomic_write(folder / f"{table}.parquet") as staged:
            pq.write_table(arrow_table, staged)
