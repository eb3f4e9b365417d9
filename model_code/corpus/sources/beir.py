"""A directory in BEIR layout: corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv, each plain or .gz.

Queries and qrels may be absent, and so may any of the splits. `corpus.qrels` names the folder of judgements, for data
sets that carry several (Thakur et al., "BEIR", 2021, https://github.com/beir-cellar/beir).
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
from model_code.errors import FreshetError
from model_code.progress import Progress, silent

SPLITS = ("train", "dev", "test")


class Source:
    """Reads a BEIR directory."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.settings, self.folder = settings, root / str(settings.path)
        documents = self._find("corpus.jsonl")
        if documents is None:
            raise FreshetError(f"{self.folder} holds no corpus.jsonl(.gz); corpus.path must name a BEIR folder")
        self.documents, self.queries = documents, self._find("queries.jsonl")
        found = {split: self._find(f"{settings.qrels}/{split}.tsv") for split in SPLITS}
        self.qrels = {split: path for split, path in found.items() if path is not None}
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
