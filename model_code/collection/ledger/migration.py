"""Bring the log of a project that an earlier version made to the tables of today, in one
transaction.

Version 1 kept beside the events what became of each of them for each retriever, and changed that
where it went back. What was taken back then leaves the log, of which a copy is kept. Its
generations do not say where they stand: all that is left is applied to them, which changes what
they lack and nothing else.

Of a log whose file is torn, what can still be read: SQLite gives the rows of whole pages, from both
ends.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from model_code.collection.ledger.database import (
    VERSION,
    Database,
    chunks,
    events,
    feedback,
    log,
    metadata,
)
from model_code.collection.ledger.events import EventKind, Feedback
from model_code.collection.ledger.ledger import (
    DocumentContents,
    insert_events,
    put_row,
    removal_row,
)
from model_code.errors import FreshetError
from model_code.text.documents import Change, Document, Remove

PIECE = 1000  # events that are held in memory at a time
UNDONE = "SELECT event_id FROM ledger_outcomes WHERE retriever = :default AND state = 'rolled_back'"
POSITION = "SELECT generation FROM ledger_positions WHERE retriever = :default"


def migrate(
    database: Database,
    default: str | None,
    current: int,
    read: Callable[[Collection[str]], DocumentContents],
) -> None:
    """Migrate, unless another process did so meanwhile.

    default: the retriever that is searched, None if nothing is live; current: its generation; read:
    reads those of some documents that this one holds. FreshetError if a rollback was cut off.
    """
    with database.write() as connection:
        version = connection.scalar(sa.text("SELECT version FROM ledger_version"))
        if version == 1:
            place = connection.scalar(sa.text(POSITION), {"default": default})
            if place is not None and place > current:
                raise FreshetError(
                    f"a rollback of {default!r} to generation {current} was cut off: let the Freshet that began it "
                    "finish it, by any command, and then come again"
                )
            _back_up(connection)
            undone = connection.scalars(sa.text(UNDONE), {"default": default}).all()
            _alter_tables(connection)
            _hash_anew(connection)
            _forget(connection, undone, read)
            connection.execute(sa.update(log).values(log=uuid4().hex))
        if version < VERSION:
            # those that are missing: of version 2 only the feedback
            metadata.create_all(connection)
            connection.execute(sa.update(log).values(version=VERSION))


def _back_up(connection: sa.Connection) -> None:
    """Keep what is about to be changed: SQLite's file beside it, elsewhere the events in a table of
    their own.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(sa.text("CREATE TABLE ledger_events_v1 AS SELECT * FROM ledger_events"))
        return
    file = Path(connection.engine.url.database or "")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(f"{file}.v1")) as target:
        source.backup(target)


def _alter_tables(connection: sa.Connection) -> None:
    """Add what is new to the tables that there are."""
    number = "BIGINT" if connection.dialect.name == "postgresql" else "INTEGER"
    connection.execute(sa.text(f"ALTER TABLE ledger_events ADD COLUMN again {number}"))
    connection.execute(sa.text("ALTER TABLE ledger_version ADD COLUMN log VARCHAR"))
    for index in events.indexes:
        index.create(connection, checkfirst=True)


def _hash_anew(connection: sa.Connection) -> None:
    """Hash contents as it is done now, or the next full export would be an event per document."""
    puts = sa.select(events.c.id, events.c.document_id, events.c.payload).where(
        events.c.kind == EventKind.PUT
    )
    update = sa.update(events).where(events.c.id == sa.bindparam("event"))
    last = 0
    while rows := connection.execute(
        puts.where(events.c.id > last).order_by(events.c.id).limit(PIECE)
    ).all():
        documents = {
            event: Document.from_payload(document_id, payload)
            for event, document_id, payload in rows
        }
        connection.execute(
            update,
            [{"event": e, "content_hash": each.content_hash} for e, each in documents.items()],
        )
        last = rows[-1].id


def _forget(
    connection: sa.Connection,
    undone: Collection[int],
    read: Callable[[Collection[str]], DocumentContents],
) -> None:
    """Delete what was taken back; where no other event names its document, say what holds of it."""
    named: set[str] = set()
    for ids in chunks(sorted(undone)):
        named |= set(
            connection.scalars(sa.select(events.c.document_id).where(events.c.id.in_(ids)))
        )
        connection.execute(sa.delete(events).where(events.c.id.in_(ids)))
    for ids in chunks(sorted(named)):
        named -= set(
            connection.scalars(sa.select(events.c.document_id).where(events.c.document_id.in_(ids)))
        )
    files = read(named)
    rows = [
        put_row(files[name][1]) if name in files else removal_row(name) for name in sorted(named)
    ]
    insert_events(
        connection, [row | {"source": "migration", "received": time.time()} for row in rows]
    )


def salvaged(file: Path, after: int) -> dict[str, Change]:
    """The last change of each document that an event after this one names, as far as it can be
    read, by id.
    """
    rows = _rows(file, "id, kind, document_id, payload", events.name, f"id > {after:d}")
    return {row[2]: _change(*row[1:]) for row in sorted(rows) if row[1] != EventKind.REVERT}


def salvaged_origins(file: Path) -> dict[str, str]:
    """As `Ledger.origins`, as far as it can be read."""
    arrived = f"kind = '{EventKind.PUT}' AND source NOT LIKE 'revert to %'"
    rows = _rows(file, "id, document_id, source", events.name, arrived)
    return {document_id: source for _, document_id, source in sorted(rows)}


def salvaged_feedback(file: Path) -> list[Feedback]:
    """What people said of hits, as far as it can be read."""
    names = ", ".join(Feedback.__dataclass_fields__)
    return [Feedback(*row) for row in _rows(file, names, feedback.name)]


def _change(kind: str, document_id: str, payload: str | None) -> Change:
    if kind == EventKind.PUT and payload:
        return Document.from_payload(document_id, json.loads(payload))
    return Remove(document_id)


def _rows(file: Path, columns: str, table: str, condition: str = "TRUE") -> set[tuple[Any, ...]]:
    """Rows of a table, read from both ends, each up to the first page that is torn.

    Each is asked for twice: Python's cursor looks one ahead, and drops the one before an error.
    """
    rows: set[tuple[Any, ...]] = set()
    twice = f"{table} CROSS JOIN (SELECT 1 UNION ALL SELECT 2)"
    query = f"SELECT {columns} FROM {twice} WHERE {condition} ORDER BY {table}.rowid"
    with closing(sqlite3.connect(file)) as connection:
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                rows.update(connection.execute(f"{query} {order}"))
    return rows
