"""Make the log of a project that an earlier version made (tables of version 1) one that has an identity.

That version kept beside the events what became of each of them for each retriever, which generation applied which, and
where each retriever stood. What of that matters is written into the log once, and where its generations stand into the
table `migrated`. All of it is one transaction, before which the database is copied.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from model_code.documents import Document
from model_code.ledger import tables
from model_code.ledger.database import Database, chunks
from model_code.ledger.events import EventKind
from model_code.ledger.history import Interval
from model_code.ledger.ledger import Contents, Row, insert_events, put_row, removal_row
from model_code.ledger.tables import events, log, migrated
from model_code.ledger.work_table import migrate_decisions

BEFORE, ROLLED_BACK = 1, "rolled_back"
PIECE = 1000  # events that are held in memory at a time

_old = sa.MetaData()
_outcomes = sa.Table(
    "ledger_outcomes", _old, *(sa.Column(name) for name in ("retriever", "event_id", "state")), extend_existing=True
)
_made = sa.Table(
    "ledger_generations", _old, *(sa.Column(name) for name in ("retriever", "number", "parent", "base", "watermark"))
)
_applied = sa.Table("ledger_applied", _old, *(sa.Column(name) for name in ("retriever", "generation", "event_id")))
_positions = sa.Table("ledger_positions", _old, *(sa.Column(name) for name in ("retriever", "generation", "base")))


@dataclass(frozen=True)
class LiveSnapshot:
    """What the live collections of a project are at the migration.

    default: the retriever that is searched; None if nothing is live. current: its generation. announced: whether a
    rollback to that one was cut off. generations: the numbers of all that there are, by retriever. held: reads those of
    some documents that the current generation holds.
    """

    default: str | None
    current: int | None
    announced: bool
    generations: Mapping[str, Collection[int]]
    held: Callable[[Collection[str]], Contents]


def migrate(database: Database, found: LiveSnapshot) -> None:
    """Bring the tables to the version of today, unless another process did so meanwhile."""
    with database.write() as connection:
        version = connection.scalar(sa.text("SELECT version FROM ledger_version"))
        if version == BEFORE:
            _give_identity(connection, found)
        if version < tables.VERSION:
            tables.metadata.create_all(connection)  # of version 2 only the feedback is missing
            connection.execute(sa.update(log).values(version=tables.VERSION))


def _give_identity(connection: sa.Connection, found: LiveSnapshot) -> None:
    """From version 1 to 2."""
    _back_up(connection)
    head, undone = head_of_old(connection), _undone(connection, found)
    _make_tables(connection)
    _hash_anew(connection)
    standings = list(_standings(connection, found, undone, head))
    _append_block(connection, undone, head, found)
    if standings:
        connection.execute(sa.insert(migrated), standings)
    migrate_decisions(connection)
    connection.execute(sa.update(log).values(log=uuid4().hex))


def head_of_old(connection: sa.Connection) -> int:
    """The last event."""
    return connection.scalar(sa.text("SELECT max(id) FROM ledger_events")) or 0


def _back_up(connection: sa.Connection) -> None:
    """Keep what is about to be changed: SQLite's file beside it; elsewhere the hashes, as nothing else is replaced."""
    if connection.dialect.name != "sqlite":
        connection.execute(sa.text("CREATE TABLE ledger_events_v1 AS SELECT id, content_hash FROM ledger_events"))
        return
    file = Path(connection.engine.url.database or "")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(f"{file}.v1")) as target:
        source.backup(target)


def _make_tables(connection: sa.Connection) -> None:
    """Add what is new; the tables of before stay until the next version."""
    number = "BIGINT" if connection.dialect.name == "postgresql" else "INTEGER"
    connection.execute(sa.text(f"ALTER TABLE ledger_events ADD COLUMN again {number}"))
    connection.execute(sa.text("ALTER TABLE ledger_version ADD COLUMN log VARCHAR"))
    tables.metadata.create_all(connection)
    for index in events.indexes:
        index.create(connection, checkfirst=True)


def _hash_anew(connection: sa.Connection) -> None:
    """By the one content hash that there is now, or the next full export would be an event per document."""
    last = 0
    columns = (events.c.id, events.c.document_id, events.c.payload)
    update = sa.update(events).where(events.c.id == sa.bindparam("event"))
    while True:
        query = sa.select(*columns).where(events.c.id > last, events.c.kind == EventKind.PUT)
        rows = connection.execute(query.order_by(events.c.id).limit(PIECE)).all()
        if not rows:
            return
        values = [
            {"event": row.id, "content_hash": Document.from_payload(row.document_id, row.payload).content_hash}
            for row in rows
        ]
        connection.execute(update.values(content_hash=sa.bindparam("content_hash")), values)
        last = rows[-1].id


def _undone(connection: sa.Connection, found: LiveSnapshot) -> set[int]:
    """The events that were rolled back in the retriever that is searched, also by a rollback that was cut off."""
    of_default = _outcomes.c.retriever == found.default
    settled = dict(map(tuple, connection.execute(sa.select(_outcomes.c.event_id, _outcomes.c.state).where(of_default))))
    place = connection.execute(sa.select(_positions).where(_positions.c.retriever == found.default)).first()
    made = _generations(connection, found.default)
    current = made.get(found.current)
    moved = place is not None and current is not None and place.generation != found.current
    if moved and (found.announced or place.base == current.base):
        return settled.keys() - _contained(connection, found.default, _lineage(made, found.current))
    return {event for event, state in settled.items() if state == ROLLED_BACK}


def _generations(connection: sa.Connection, retriever: str | None) -> dict[int | None, sa.Row]:
    rows = connection.execute(sa.select(_made).where(_made.c.retriever == retriever))
    return {row.number: row for row in rows}


def _lineage(made: Mapping[int | None, sa.Row], number: int | None) -> list[int]:
    """A generation and those of the same build that it continues."""
    numbers = [number]
    row = made[number]
    while row.parent is not None and row.base != row.number:
        parent = made.get(row.parent)
        if parent is None or parent.base != row.base:
            break
        numbers.append(parent.number)
        row = parent
    return numbers


def _contained(connection: sa.Connection, retriever: str | None, lineage: Iterable[int]) -> set[int]:
    """The events that one of these generations applied."""
    found: set[int] = set()
    for numbers in chunks(sorted(lineage)):
        chosen = (_applied.c.retriever == retriever) & _applied.c.generation.in_(numbers)
        found |= set(connection.scalars(sa.select(_applied.c.event_id).where(chosen)))
    return found


def _standings(
    connection: sa.Connection, found: LiveSnapshot, undone: set[int], head: int
) -> Iterator[dict[str, int | str]]:
    """Where each generation stands: before the first event in effect that it lacks.

    One that the ledger did not know, as the process was killed before it was told, is taken to hold none: to apply more
    than needed does no harm.
    """
    ids = connection.scalars(sa.select(events.c.id).order_by(events.c.id)).all()
    before = [(event, earlier) for event, earlier in zip(ids, (0, *ids), strict=False) if event not in undone]
    for retriever, numbers in sorted(found.generations.items()):
        made = _generations(connection, retriever)
        for number in sorted(numbers):
            event = trained = 0
            if number in made:
                lineage = _lineage(made, number)
                contained = _contained(connection, retriever, lineage)
                event = next((earlier for each, earlier in before if each not in contained), head)
                trained = made[lineage[-1]].watermark
            yield {"retriever": retriever, "generation": number, "event": event, "trained": trained}


def _append_block(connection: sa.Connection, undone: set[int], head: int, found: LiveSnapshot) -> None:
    """Append what is in effect for every document of which something was rolled back, also where nothing differs."""
    if not undone:
        return
    common = {"source": "migration", "received": time.time()}
    rows = _in_effect(connection, undone, found)
    ids = insert_events(connection, [row | common for row in rows])
    facts = {"to": head, "files": False, "first": ids[0], "undone": _intervals(connection, undone)}
    row = {"kind": EventKind.REVERT, "document_id": "", "content_hash": "", "payload": facts, **common}
    insert_events(connection, [row])


def _in_effect(connection: sa.Connection, undone: set[int], found: LiveSnapshot) -> list[Row]:
    named: set[str] = set()
    for ids in chunks(sorted(undone)):
        named |= set(connection.scalars(sa.select(events.c.document_id).where(events.c.id.in_(ids))))
    last: dict[str, Row] = {}
    columns = (events.c.id, events.c.kind, events.c.document_id, events.c.content_hash, events.c.payload)
    for documents in chunks(sorted(named)):
        query = sa.select(*columns).where(events.c.document_id.in_(documents)).order_by(events.c.id)
        for event, *content in connection.execute(query):
            if event not in undone:
                last[content[1]] = dict(zip(("kind", "document_id", "content_hash", "payload"), content, strict=True))
    files = {each: put_row(document) for each, (_, document) in found.held(named - last.keys()).items()}
    return [last.get(each) or files.get(each) or removal_row(each) for each in sorted(named)]


def _intervals(connection: sa.Connection, undone: set[int]) -> list[Interval]:
    """The fewest intervals that have these events, and no other one."""
    found: list[Interval] = []
    before, inside = 0, False
    for event in connection.scalars(sa.select(events.c.id).order_by(events.c.id)):
        if event in undone:
            found = [*found[:-1], (found[-1][0], event)] if inside else [*found, (before, event)]
        before, inside = event, event in undone
    return found
