"""Rows that arrive for the live collection: read, cleaned and refused by the same rules as those of
the corpus.

What differs: a repeated id is a change of that document, not an error, and a list under `queries`
are queries that the document shall be found by; anything else there is refused. The id may also be
called `id`, and `fields` may be an object of its own, whose keys are fields whatever they are
called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model_code.corpus.cleaning import clean_document, clean_line
from model_code.corpus.rows import (
    Quarantine,
    RefusedRow,
    Rejection,
    Row,
    RowError,
    map_columns,
    require_columns,
)
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES, read_document
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.text.documents import Document

COLUMNS = ColumnSettings()
RawRow = Row | RefusedRow | Mapping[str, Any]
"""A row of a file as `read_file` yields it, or plain values such as those in the body of a request.
"""


@dataclass(frozen=True)
class CleanRows:
    """The sound documents of some rows, in their order, with the numbers of their rows, and the
    rows refused.
    """

    documents: tuple[Document, ...]
    numbers: tuple[int, ...]
    rejected: tuple[Rejection, ...]

    @property
    def document_ids(self) -> list[str]:
        """The id of each sound document."""
        return [document.document_id for document in self.documents]

    def restricted_to(self, allowed: Set[str], reason: str) -> CleanRows:
        """The same with documents of other ids refused, for this reason."""
        numbered = list(zip(self.numbers, self.document_ids, strict=True))
        refused = [Rejection(number, id_, reason) for number, id_ in numbered if id_ not in allowed]
        documents = tuple(
            document for document in self.documents if document.document_id in allowed
        )
        return CleanRows(
            documents, tuple(n for n, id_ in numbered if id_ in allowed), (*self.rejected, *refused)
        )


def read_file(
    path: Path, name: str | None = None, columns: ColumnSettings = COLUMNS
) -> Iterator[Row | RefusedRow]:
    """The rows of a .jsonl, .csv, .tsv or .parquet file, plain or .gz, or the one document in a
    file such as a PDF.

    name: what locations call it, and the document's id. FreshetError if the file has another
    format, or cannot be read as a whole.
    """
    name = name or path.name
    if not path.is_file():
        raise FreshetError(f"{path} is not a file; name files or folders, or - for standard input")
    if path.suffix.lower() not in DOCUMENT_SUFFIXES:
        yield from read_rows(path, "documents", name)
        return
    row, names = read_document(path, name, name), columns.of("documents")
    if isinstance(row, RefusedRow):
        yield row
    else:
        yield Row(
            row.table,
            row.location,
            {names.get(ours, ours): value for ours, value in row.values.items()},
        )


def require_known_columns(path: Path, name: str, columns: ColumnSettings) -> None:
    """FreshetError if a file of rows has no column of texts or ids."""
    if path.suffix.lower() not in DOCUMENT_SUFFIXES:
        require_columns(read_rows(path, "documents", name), "documents", columns, name, any_id=True)


def clean_rows(rows: Iterable[RawRow], settings: CorpusSettings, source: str) -> CleanRows:
    """Clean the rows; what the corpus stage would put into quarantine is refused, with the same
    reason.
    """
    quarantine = Quarantine()
    located = (
        _row_of(row, f"{source}:{number}", settings.columns) if isinstance(row, Mapping) else row
        for number, row in enumerate(rows, 1)
    )
    arriving = (flatten_fields(map_columns(row, settings.columns)) for row in located)
    sound = list(
        quarantine.admit(
            arriving,
            lambda row: (_number(row), clean_document_with_queries(row, settings.max_characters)),
        )
    )
    refused = [
        Rejection(_number(row), row.record_id, f"{row.reason}: {row.detail}")
        for row in quarantine.refused
    ]
    return CleanRows(
        tuple(document for _, document in sound),
        tuple(number for number, _ in sound),
        tuple(refused),
    )


def _row_of(values: Mapping[str, Any], location: str, columns: ColumnSettings) -> Row:
    """Plain values as a row of the source; they may go by our names of its columns, too."""
    values, names = dict(values), columns.of("documents")
    for ours, column in (*names.items(), ("_id", names["id"])):
        if column not in values and ours in values and ours not in names.values():
            values[column] = values.pop(ours)
    return Row("documents", location, values)


def clean_document_with_queries(row: Row, max_characters: int) -> Document:
    """The clean document in a row that is `flatten_fields`, with its queries; raises `RowError`."""
    return replace(
        clean_document(row, max_characters), queries=_clean_queries(row.values["queries"])
    )


def document_to_row(document: Document, columns: ColumnSettings) -> dict[str, Any]:
    """Return a document as a row of the source, which `clean_rows` reads to the same document.

    Args:
        document: The document.
        columns: The names that the source has for its columns.
    """
    names = columns.of("documents")
    row: dict[str, Any] = {
        names["id"]: document.document_id,
        names["title"]: document.title,
        names["text"]: document.text,
    }
    if document.date is not None:
        row[names["date"]] = document.date
    row["fields"] = dict(document.fields)
    row["queries"] = list(document.queries)
    return row


def _number(row: Row | RefusedRow) -> int:
    """The number of a row in its source."""
    return int(row.location.rpartition(":")[2])


def flatten_fields(row: Row | RefusedRow) -> Row | RefusedRow:
    """The row with an `id`, with the object under `fields` as fields of their own, and with what is
    under `queries`.
    """
    if isinstance(row, RefusedRow):
        return row
    fields, values = dict(row.values.get("fields") or {}), dict(row.values)
    if "id" not in values and "id" in fields:
        values["id"] = fields.pop("id")
    queries = fields.pop("queries", None)
    if isinstance(fields.get("fields"), Mapping):
        fields |= fields.pop("fields")
    return Row(row.table, row.location, values | {"fields": fields, "queries": queries})


def _clean_queries(queries: Any) -> tuple[str, ...]:
    """The texts of a list; none of no value, or of an empty cell."""
    if queries is None or queries == "":
        return ()
    if not isinstance(queries, list):
        raise RowError(
            "wrong type",
            f"queries is a {type(queries).__name__}, not a list of texts; call a field otherwise",
        )
    for query in queries:
        if not isinstance(query, str):
            raise RowError("wrong type", f"queries holds a {type(query).__name__}, not text")
    return tuple(filter(None, map(clean_line, queries)))
