"""The check that a table has the columns that the settings name: a misspelt one is an error, not an absence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from model_code.corpus.rows import Malformed, Row, Table, printable
from model_code.corpus.settings import ColumnSettings
from model_code.errors import FreshetError


def require_columns(rows: Iterable[Row | Malformed], table: Table, columns: ColumnSettings, name: str) -> None:
    """Raise `FreshetError` unless each column that `columns` expects of `table` occurs in one of its rows.

    rows: as they are found, under the source's own names, read only until all are seen; without any there is nothing to
    say. name: what the error calls the table.
    """
    missing, held = columns.expected(table), dict[str, None]()
    for row in rows:
        held |= dict.fromkeys(_names(row))
        missing = {key: column for key, column in missing.items() if column not in held}
        if not missing:
            return
    if held:
        sought = ", ".join(f"{column!r} (corpus.columns.{key})" for key, column in missing.items())
        raise FreshetError(
            f"{name} has no column {sought}; it has: {printable(', '.join(map(str, held)), 300)}. "
            "Say under corpus.columns in params.yaml which column holds what"
        )


def _names(row: Row | Malformed) -> list[str]:
    """The row's columns; those of a query include what lies in its `metadata`, where its answers may be."""
    if isinstance(row, Malformed):
        return []
    metadata = row.values.get("metadata") if row.table == "queries" else None
    return [*row.values, *(metadata if isinstance(metadata, Mapping) else ())]
