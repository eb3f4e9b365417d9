"""Rows of documents, queries and qrels, and the mapping of a source's column names to our names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from freshet.results import ReadingNote
from model_code.corpus.settings import ColumnSettings
from model_code.errors import FreshetError

# Default name of the id column of documents and queries. A column `id` is accepted as well.
DEFAULT_ID_COLUMN = "_id"

# Our name for the grade of a judgement. Qrels that do not call this column `score` usually call it
# `relevance`, too.
RELEVANCE = "relevance"

# Column of qrels with the origin of a judgement, and the one value of it that is read. Users of the
# search typed the queries of such judgements.
ORIGIN = "origin"
FROM_FEEDBACK = "feedback"

# Longest excerpt of a refused row, in characters.
MAX_EXCERPT_CHARACTERS = 120

# Longest list of column names in an error message, in characters.
MAX_LISTED_COLUMNS_CHARACTERS = 300

Table = Literal["documents", "queries", "qrels"]
Reason = Literal[
    "bad JSON",
    "bad line",
    "invalid UTF-8",
    "missing column",
    "wrong type",
    "missing id",
    "bad id",
    "duplicate id",
    "unknown id",
    "empty text",
    "huge text",
    "bad relevance",
    "bad split",
    "binary file",
    "huge file",
    "unreadable file",
    "conflicting split",
    "dangling qrel",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table, with our names for its columns. Its values are not checked yet.

    Attributes:
        table: Documents have the values `id, title, text, date, fields, queries`, queries have
            `id, text, answers`, and qrels have `query_id, document_id, relevance, split, origin`.
        location: Place in the source, usually NAME:NUMBER, such as `corpus.jsonl:17`.
        values: The values by our names. Columns that the source lacks are missing.
        notes: Statements about parts of the row's file that were not read, or read by a guess. In a
            file of many rows, only the first row has them.
    """

    table: Table
    location: str
    values: Mapping[str, Any]
    notes: tuple[ReadingNote, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that was refused.

    Attributes:
        table: Table that the row belongs to.
        location: Place in the source, as in `Row`.
        reason: Why it was refused: one of a fixed set of short reasons.
        detail: The exact fault.
        excerpt: The beginning of the row.
        record_id: Id of the record. If it is not valid, its printable text; None if it is missing.
        has_valid_id: Whether `record_id` is an id that a document or query can have.
    """

    table: Table
    location: str
    reason: Reason
    detail: str
    excerpt: str
    record_id: str | None = None
    has_valid_id: bool = False

    @property
    def message(self) -> str:
        """The reason with its detail."""
        return f"{self.reason}: {self.detail}"


@dataclass(frozen=True)
class Rejection:
    """A refused row in the form in which the ledger records it.

    Attributes:
        row: Number of the row in its source, from 1.
        document_id: Id that the row seems to have.
        reason: Why the row was refused.
    """

    row: int
    document_id: str | None
    reason: str


class RowError(Exception):
    """The reason why a row is refused, raised by the code that checks the row."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def row_number(location: str) -> int | None:
    """Return the number of a row in its source; None if the source does not number its rows.

    >>> row_number("corpus.jsonl:17")
    17
    >>> row_number("numpy.sort")
    """
    number = location.rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def map_columns(row: Row | RefusedRow, columns: ColumnSettings) -> Row | RefusedRow:
    """Rename the columns of a row from the source's names to our names.

    A column `id` is accepted in place of the id column that the settings name. The column `queries`
    of a document holds its known queries. All other columns of a document become its `fields`. If
    there is a column `fields` with an object, the entries of the object become fields, too.

    The answers of a query may also be in a mapping `metadata`. BEIR's queries.jsonl stores
    everything except id and text there.

    A column `origin` of qrels is read if it says `feedback`, as in an export. Other values are the
    source's own.

    Args:
        row: Row with the column names of its source. A refused row is returned unchanged.
        columns: The column names of the source.
    """
    if isinstance(row, RefusedRow):
        return row

    names = columns.of(row.table)
    values = {ours: row.values[name] for ours, name in names.items() if name in row.values}
    if row.table == "documents":
        _add_fields(values, row.values, names)
    elif row.table == "queries":
        _add_query_values(values, row.values, names)
    else:
        _add_relevance(values, row.values, columns)
        if row.values.get(ORIGIN) == FROM_FEEDBACK:
            values[ORIGIN] = FROM_FEEDBACK
    return Row(row.table, row.location, values, row.notes)


def _add_fields(
    values: dict[str, Any], source_values: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Add a column `id` as the id, the column `queries`, and all other columns as fields.

    Args:
        values: Values of the row by our names. They are changed in place.
        source_values: Values of the row by the source's column names.
        names: The source's column names by our names.
    """
    fields = {name: value for name, value in source_values.items() if name not in names.values()}
    if "id" not in values and "id" in fields:
        values["id"] = fields.pop("id")
    if "queries" in fields:
        values["queries"] = fields.pop("queries")

    # The object may have an entry `fields` of its own. It is therefore removed before its entries
    # are added.
    nested = fields.get("fields")
    if isinstance(nested, Mapping):
        del fields["fields"]
        fields.update(nested)
    values["fields"] = fields


def _add_query_values(
    values: dict[str, Any], source_values: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Add a column `id` as the id, and the answers if only the mapping `metadata` has them.

    Args:
        values: Values of the row by our names. They are changed in place.
        source_values: Values of the row by the source's column names.
        names: The source's column names by our names.
    """
    has_default_id_column = names["id"] == DEFAULT_ID_COLUMN
    if "id" not in values and has_default_id_column and "id" in source_values:
        values["id"] = source_values["id"]

    if "answers" in names and values.get("answers") is None:
        metadata = source_values.get("metadata")
        if isinstance(metadata, Mapping) and names["answers"] in metadata:
            values["answers"] = metadata[names["answers"]]


def _add_relevance(
    values: dict[str, Any], source_values: Mapping[str, Any], columns: ColumnSettings
) -> None:
    """Use a column `relevance` if the settings keep the name `score` and there is no such column.

    A missing grade counts as 1. If the column were ignored, a grade of 0 in it would count as 1.
    """
    is_default = columns.relevance == ColumnSettings().relevance
    if is_default and RELEVANCE in source_values:
        values.setdefault(RELEVANCE, source_values[RELEVANCE])


def require_columns(
    rows: Iterable[Row | RefusedRow],
    table: Table,
    columns: ColumnSettings,
    name: str,
    any_id: bool = False,
) -> None:
    """Check that every expected column of a table occurs in at least one of its rows.

    `ColumnSettings.expected` tells the expected columns. Rows are read until all of them were seen.
    A table without sound rows passes.

    Args:
        rows: Rows with the column names of their source.
        table: The table that the rows belong to.
        columns: The column names of the source.
        name: Name of the table in the error.
        any_id: Accept a column `id` as the id even if the settings name another id column.

    Raises:
        FreshetError: If a column is missing.
    """
    # The expected columns that no row has had so far: {setting under corpus.columns: column name}.
    missing = columns.expected(table)
    id_column = columns.of(table).get("id")
    # All column names of the rows so far, in the order in which they first occur.
    seen: dict[str, None] = {}

    for row in rows:
        if isinstance(row, RefusedRow):
            continue
        seen.update(dict.fromkeys(row.values))
        metadata = row.values.get("metadata")
        if table == "queries" and isinstance(metadata, Mapping):
            # The answers of a query may be in its metadata.
            seen.update(dict.fromkeys(metadata))

        accepted = set(seen)
        if id_column is not None and _has_other_id_column(seen, id_column, any_id):
            accepted.add(id_column)
        missing = {key: column for key, column in missing.items() if column not in accepted}
        if not missing:
            return

    if seen:
        wanted = ", ".join(f"{column!r} (corpus.columns.{key})" for key, column in missing.items())
        existing = printable(", ".join(map(str, seen)), MAX_LISTED_COLUMNS_CHARACTERS)
        raise FreshetError(
            f"{name} has no column {wanted}; it has: {existing}. "
            "Say under corpus.columns in params.yaml which column holds what"
        )


def _has_other_id_column(seen: Collection[str], id_column: str, any_id: bool) -> bool:
    """Return whether rows have a column `id` that counts as their id column.

    As in `map_columns`, it counts in place of the default `_id`, if there is no such column.

    Args:
        seen: Names of the columns of the rows.
        id_column: Name of the id column in the settings.
        any_id: Whether a column `id` counts in any case.
    """
    if "id" not in seen:
        return False
    lacks_default_column = id_column == DEFAULT_ID_COLUMN and DEFAULT_ID_COLUMN not in seen
    return any_id or lacks_default_column


def printable(value: Any, length: int = MAX_EXCERPT_CHARACTERS) -> str:
    """Return the first characters of a value as text that any file or database can store.

    NUL and characters that UTF-8 cannot encode become "?".

    >>> printable("caf\\udce9 au lait", 6)
    'caf? a'
    """
    text = str(value)[:length].replace("\0", "?")
    return text.encode("utf-8", "replace").decode("utf-8")
