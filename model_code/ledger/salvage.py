"""What can still be read of a log whose file is torn: SQLite gives the rows of whole pages, from both ends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from model_code.documents import Change, Document, Remove
from model_code.ledger.events import EventKind, Feedback
from model_code.ledger.tables import events, feedback


def salvaged(file: Path, after: int) -> dict[str, Change]:
    """The last change of each document that an event after this one names, as far as it can be read, by id."""
    rows = _rows(file, f"SELECT id, kind, document_id, payload FROM {events.name} WHERE id > {after:d} ORDER BY id")
    return {row[2]: _change(*row[1:]) for row in sorted(rows) if row[1] != EventKind.REVERT}


def salvaged_origins(file: Path) -> dict[str, str]:
    """As `Ledger.origins`, as far as it can be read."""
    arrived = f"kind = '{EventKind.PUT}' AND source NOT LIKE 'revert to %'"
    rows = _rows(file, f"SELECT id, document_id, source FROM {events.name} WHERE {arrived} ORDER BY id")
    return {document_id: source for _, document_id, source in sorted(rows)}


def salvaged_feedback(file: Path) -> list[Feedback]:
    """What people said of hits, as far as it can be read."""
    names = ", ".join(Feedback.__dataclass_fields__)
    return [Feedback(*row) for row in _rows(file, f"SELECT {names} FROM {feedback.name} ORDER BY rowid")]


def _change(kind: str, document_id: str, payload: str | None) -> Change:
    return (
        Document.from_payload(document_id, json.loads(payload))
        if kind == EventKind.PUT and payload
        else Remove(document_id)
    )


def _rows(file: Path, query: str) -> set[tuple[Any, ...]]:
    """The rows of a query, read from both ends, each up to the first page that is torn."""
    rows: set[tuple[Any, ...]] = set()
    with closing(sqlite3.connect(file)) as connection:
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                for row in connection.execute(f"{query} {order}"):
                    rows.add(row)
    return rows
