"""Read as much as possible from a damaged SQLite ledger.

SQLite stops with an error at a damaged page of a table. So each table is read twice: from its start
up to the first damaged page, and from its end up to the last damaged page.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from model_code.collection.ledger.database import events, feedback, forgotten_queries
from model_code.collection.ledger.events import EventKind, Feedback
from model_code.errors import FreshetError
from model_code.text.documents import Change, Document, Remove


def salvage_changes(file: Path, after: int) -> dict[str, Change]:
    """Read the last change of each document from a damaged ledger.

    Args:
        file: File of the ledger.
        after: Id of an event. Only later events are read.

    Returns:
        The last readable change of each document, by document id.
    """
    rows = _read_rows(file, "id, kind, document_id, payload", events.name, f"id > {after:d}")
    changes: dict[str, Change] = {}
    for _, kind, document_id, payload in sorted(rows):
        if kind not in (EventKind.PUT, EventKind.REMOVE):
            continue
        # An event that put a document has no content if the document was erased later.
        has_content = kind == EventKind.PUT and bool(payload)
        if not has_content:
            changes[document_id] = Remove(document_id)
            continue
        document = _parse_document(document_id, payload)
        if document is not None:
            changes[document_id] = document
    return changes


def _parse_document(document_id: str, payload: str) -> Document | None:
    """Return the document of an event, or None if its content is damaged.

    SQLite finds damage in the structure of a page, and not in a text. A document with a damaged
    text is left out, like a row on a damaged page.
    """
    try:
        return Document.from_payload(document_id, json.loads(payload))
    except (ValueError, KeyError, TypeError, FreshetError):
        return None


def salvage_document_sources(file: Path) -> dict[str, str]:
    """Read the source of the last put of each document from a damaged ledger, by document id.

    A revert also puts documents. It does not count, because it is not where a document came from.
    """
    is_arrival = f"kind = '{EventKind.PUT}' AND source NOT LIKE 'revert to %'"
    rows = _read_rows(file, "id, document_id, source", events.name, is_arrival)
    # The rows are sorted by event id, so the last put of a document replaces earlier ones.
    return {document_id: source for _, document_id, source in sorted(rows)}


def salvage_feedback(file: Path) -> list[Feedback]:
    """Read the feedback from a damaged ledger, except for rows on damaged pages."""
    columns = ", ".join(Feedback.__dataclass_fields__)
    return [Feedback(*row) for row in _read_rows(file, columns, feedback.name)]


def salvage_forgotten_queries(file: Path) -> dict[str, float]:
    """Read the forgotten queries from a damaged ledger.

    Returns:
        Time when each query was forgotten, in seconds since 1970, by the hash of the query.
    """
    rows = _read_rows(file, "hash, received", forgotten_queries.name)
    return dict(sorted(rows))


def _read_rows(
    file: Path, columns: str, table: str, condition: str = "TRUE"
) -> set[tuple[Any, ...]]:
    """Read rows of a table from both ends, each time until SQLite reports a damaged page.

    Args:
        file: File of the ledger.
        columns: Names of the columns, as in SQL.
        table: Name of the table.
        condition: Condition of the rows, as in SQL.
    """
    rows: set[tuple[Any, ...]] = set()
    # Python's cursor fetches one row ahead, and drops it when an error follows. So the query
    # returns each row twice, and the set keeps it once.
    doubled_table = f"{table} CROSS JOIN (SELECT 1 UNION ALL SELECT 2)"
    query = f"SELECT {columns} FROM {doubled_table} WHERE {condition} ORDER BY {table}.rowid"
    with closing(sqlite3.connect(file)) as connection:
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                rows.update(connection.execute(f"{query} {order}"))
    return rows
