"""Clean rows of documents: the only way in which a row becomes a document.

A build, `freshet add`, the inbox, HTTP requests, imports and `freshet sync` all call this module.
Equal rows therefore become equal documents, or are refused for the same reason, on every way in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from freshet.results import ReadingNote
from model_code.corpus.cleaning import clean_document
from model_code.corpus.corpus_queries import query_hash
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import (
    RefusedRow,
    Rejection,
    Row,
    RowError,
    map_columns,
    require_columns,
    row_number,
)
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.corpus.sources.document_files import is_document_file, read_document
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.text.documents import Document

DEFAULT_COLUMNS = ColumnSettings()

RawRow = Row | RefusedRow | Mapping[str, Any]
"""A row before cleaning.

It is a row of a source, with our names for its columns, or a mapping of plain values, such as the
body of a request.
"""


@dataclass(frozen=True)
class CleanRows:
    """Rows of documents after cleaning.

    Attributes:
        documents: The documents of the rows that were not refused, in the order of the rows.
        locations: The location of each document's row, such as `corpus.jsonl:17`.
        refused: The refused rows.
        notes: Statements about parts of the documents' files that were not read, or read by a
            guess.
    """

    documents: tuple[Document, ...]
    locations: tuple[str, ...]
    refused: tuple[RefusedRow, ...]
    notes: tuple[ReadingNote, ...] = ()

    @property
    def document_ids(self) -> list[str]:
        """Id of each document, in the order of the rows."""
        return [document.document_id for document in self.documents]

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The refused rows in the form in which the ledger records them.

        A row without a number is the only one of its file, so it counts as row 1.
        """
        rejections: list[Rejection] = []
        for row in self.refused:
            number = row_number(row.location) or 1
            rejections.append(Rejection(number, row.record_id, row.message))
        return tuple(rejections)

    def restricted_to(self, allowed: Set[str], detail: str) -> CleanRows:
        """Refuse all documents whose id is not allowed, and return the result.

        Args:
            allowed: Ids of the documents that are accepted.
            detail: Explanation that follows the reason "unknown id" of the refused rows.
        """
        documents: list[Document] = []
        locations: list[str] = []
        refused = list(self.refused)
        for document, location in zip(self.documents, self.locations, strict=True):
            if document.document_id in allowed:
                documents.append(document)
                locations.append(location)
                continue
            refused.append(
                RefusedRow(
                    "documents",
                    location,
                    "unknown id",
                    detail,
                    excerpt="",
                    record_id=document.document_id,
                    has_valid_id=True,
                )
            )
        return CleanRows(tuple(documents), tuple(locations), tuple(refused), self.notes)

    def without_queries(self, forgotten: Set[str]) -> CleanRows:
        """Remove queries from the documents that arrived with them, and return the result.

        Args:
            forgotten: Hashes of the queries to remove; see `query_hash`.
        """
        if not forgotten:
            return self
        documents: list[Document] = []
        for document in self.documents:
            kept = tuple(query for query in document.queries if query_hash(query) not in forgotten)
            if len(kept) < len(document.queries):
                documents.append(replace(document, queries=kept))
            else:
                documents.append(document)
        return replace(self, documents=tuple(documents))


def clean_rows(
    rows: Iterable[RawRow],
    settings: CorpusSettings,
    source: str = "rows",
    unique_ids: bool = False,
) -> CleanRows:
    """Clean rows of documents.

    Args:
        rows: Rows of a source, or mappings of plain values. The keys of a mapping may be the
            column names of the project's source, or our names.
        settings: The limits of a document, and the column names of the project's source.
        source: Name of the source in the locations of plain values.
        unique_ids: Whether to refuse a row that repeats the id of an earlier accepted row. Builds
            refuse it, because a repeated id is an error of the source. Additions accept both rows,
            and the last one counts.

    Returns:
        The documents of the sound rows, and the refused rows with their reasons.
    """
    quarantine = Quarantine()
    seen_ids: set[str] = set()
    documents: list[Document] = []
    locations: list[str] = []
    notes: list[ReadingNote] = []

    def check(row: Row) -> tuple[str, Document]:
        """Return the location and the clean document of a row, and keep the notes of its file."""
        document = clean_document(row, settings.max_characters)
        if unique_ids and document.document_id in seen_ids:
            raise RowError("duplicate id", f"an earlier row has the id {document.document_id!r}")
        notes.extend(row.notes)
        return row.location, document

    located = locate_rows(rows, settings.columns, source)
    for location, document in quarantine.admit(located, check):
        seen_ids.add(document.document_id)
        documents.append(document)
        locations.append(location)
    return CleanRows(tuple(documents), tuple(locations), tuple(quarantine.refused), tuple(notes))


def locate_rows(
    rows: Iterable[RawRow], columns: ColumnSettings, source: str
) -> Iterator[Row | RefusedRow]:
    """Yield all rows as `Row` or `RefusedRow`.

    A mapping of plain values becomes a `Row` whose location is its number, such as `rows:3`.
    """
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Mapping):
            values = _source_names(row, columns)
            yield map_columns(Row("documents", f"{source}:{number}", values), columns)
        else:
            yield row


def _source_names(values: Mapping[str, Any], columns: ColumnSettings) -> dict[str, Any]:
    """Return plain values with the column names of the source in place of Freshet's names.

    A request may call the text `text`, for example, where the source calls it `body`. If one of
    Freshet's names is also a column name of the source, its value stays in that column.
    """
    values = dict(values)
    source_columns = columns.of("documents")
    aliases = [*source_columns.items(), ("_id", source_columns["id"])]
    for our_name, column in aliases:
        is_column_free = column not in values
        is_source_column = our_name in source_columns.values()
        if our_name in values and is_column_free and not is_source_column:
            values[column] = values.pop(our_name)
    return values


def read_file(
    path: Path, name: str | None = None, columns: ColumnSettings = DEFAULT_COLUMNS
) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a file of documents, with our names for the columns.

    Args:
        path: A .jsonl, .json, .csv, .tsv or .parquet file of rows, plain or .gz, or a file that is
            one document, such as a PDF.
        name: Name of the file in the locations of its rows, such as `NAME:17`. It also is the id of
            the one document. None: the name of the path.
        columns: The column names of a file of rows.

    Raises:
        FreshetError: If the file has another format, or cannot be read at all. A single bad row is
            yielded as a `RefusedRow` instead.
    """
    name = name or path.name
    if not path.is_file():
        raise FreshetError(f"{path} is not a file; name files or folders, or - for standard input")
    if is_document_file(path):
        yield read_document(path, name, name)
        return
    for row in read_rows(path, "documents", name):
        yield map_columns(row, columns)


def require_known_columns(path: Path, name: str, columns: ColumnSettings) -> None:
    """Check that a file of rows has the columns that every document needs.

    These are the id, the text and all columns that the settings rename.

    Raises:
        FreshetError: If a column is missing.
    """
    if not is_document_file(path):
        require_columns(read_rows(path, "documents", name), "documents", columns, name, any_id=True)


def document_to_row(document: Document, columns: ColumnSettings) -> dict[str, Any]:
    """Return a document as a row with the column names of the source.

    `clean_rows` turns the row into an equal document.

    Args:
        document: The document.
        columns: The column names of the source.
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
