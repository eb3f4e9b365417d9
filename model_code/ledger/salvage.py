"""What can still be read of a log whose file is torn: SQLite gives the rows of whole pages, from both ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from model_code.documents import Change, Document, Remove
from model_code.ledger.events import EventKind
from model_code.ledger.tables import events


def salvaged(file: Path, after: int) -> dict[str, Change]:
    """The last change of each document that an event after this one names, as far as it can be read, by id."""
    rows = {row[0]: row for order in ("ASC", "DESC") for row in _rows(file, after, order)}
    return {row[2]: _change(*row[1:]) for _, row in sorted(rows.items()) if row[1] != EventKind.REVERT}


def _change(kind: str, document_id: str, payload: str | None) -> Change:
    return (
        Document.from_payload(document_id, json.loads(payload))
        if kind == EventKind.PUT and payload
        else Remove(document_id)
    )


def _rows(file: Path, after: int, order: str) -> Iterator[tuple[Any, ...]]:
    """The events in one direction, up to the first page that is torn."""
    query = f"SELECT id, kind, document_id, payload FROM {events.name} WHERE id > ? ORDER BY id {order}"
    with closing(sqlite3.connect(file)) as connection:
        try:
            yield from connection.execute(query, (after,))
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return
