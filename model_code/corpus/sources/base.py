"""The interface of a source of documents, and the one function that opens the source that the settings name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from model_code.corpus.rows import Malformed, Row, Table
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text
from model_code.progress import Progress, silent


class Source(Protocol):
    """Where documents, queries and qrels come from. A new kind is one more module with a `Source` class of its own.

    Its constructor takes (settings, root, locked): the settings, the project's root, and the description that
    `corpus.lock.json` holds, or None while the lock is made.
    """

    def describe(self) -> dict[str, Any]:
        """What is read, cheaply: at least `versions`, `watermark` and `content_hash`; no absolute path, no time."""

    def rows(self, table: Table, progress: Progress = silent) -> Iterator[Row | Malformed]:
        """Yield the rows of one table as they are read, always in the same order; none for a table that it lacks."""


RELEVANCE = "relevance"  # our name for it, and the usual one of qrels that do not call it `score`


def open_source(settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> Source:
    """The source named by `settings.source`; relative paths are resolved against `root`."""
    module = importlib.import_module(f"model_code.corpus.sources.{settings.source}")
    return module.Source(settings, root, locked)


def renamed(row: Row | Malformed, columns: ColumnSettings) -> Row | Malformed:
    """The row with our names for its columns; a document's remaining columns are gathered under `fields`.

    A query's answers may also lie in a mapping `metadata`, as BEIR's queries.jsonl keeps what is beside the text. Where
    no setting names the column of the relevance and `score` is missing, it is `relevance`: read as 1, a 0 would count.
    """
    if isinstance(row, Malformed):
        return row
    names = columns.of(row.table)
    values = {ours: row.values[theirs] for ours, theirs in names.items() if theirs in row.values}
    if row.table == "qrels" and columns.relevance == ColumnSettings.relevance and RELEVANCE in row.values:
        values.setdefault(RELEVANCE, row.values[RELEVANCE])
    if row.table == "documents":
        values["fields"] = {key: value for key, value in row.values.items() if key not in names.values()}
    if "answers" in names and values.get("answers") is None:
        values |= _beside(row, names["answers"])
    return Row(row.table, row.location, values)


def _beside(row: Row, column: str) -> dict[str, Any]:
    metadata = row.values.get("metadata")
    return {"answers": metadata[column]} if isinstance(metadata, Mapping) and column in metadata else {}


def hash_files(files: Mapping[str, Path]) -> dict[str, Any]:
    """A description of files by name: the SHA-256 of each, and of all of them together."""
    for path in files.values():
        if not path.exists():
            raise FreshetError(f"{path} does not exist; the settings under `corpus` in params.yaml name it")
    hashes = {name: hash_path(path) for name, path in sorted(files.items())}
    return {"versions": {}, "watermark": None, "files": hashes, "content_hash": hash_text(canonical_json(hashes))}
