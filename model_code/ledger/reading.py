"""Questions to the ledger. All functions run inside the transaction of their caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from model_code.documents import Document
from model_code.ledger.database import chunks
from model_code.ledger.records import PENDING, REJECTED, ROLLED_BACK, STATES, Event, Position
from model_code.ledger.schema import events, outcomes, positions, rejections

ROWS = 1000  # contents that are held in memory at a time


def position_of(connection: sa.Connection, retriever: str) -> Position | None:
    """Where the retriever stands, None before its first generation was seen."""
    row = connection.execute(sa.select(positions).where(positions.c.retriever == retriever)).first()
    return None if row is None else Position(row.generation, row.base, row.watermark, row.horizon)


def pending_query(connection: sa.Connection, retriever: str, watermark: int | None = None) -> sa.Select[Any]:
    """The events, oldest first, that no generation of the retriever has settled, up to `watermark`."""
    position = position_of(connection, retriever)
    join = events.outerjoin(outcomes, _own(retriever))
    open_ones = (events.c.id > (position.horizon if position else 0)) & outcomes.c.event_id.is_(None)
    query = sa.select(events).select_from(join).where(open_ones).order_by(events.c.id)
    return query if watermark is None else query.where(events.c.id <= watermark)


def pending(connection: sa.Connection, retriever: str, limit: int | None) -> list[Event]:
    """The pending events, oldest first."""
    return [Event(**row._mapping) for row in connection.execute(pending_query(connection, retriever).limit(limit))]


def history(connection: sa.Connection, retriever: str, document_id: str) -> list[Event]:
    """Every event of a document, oldest first."""
    return _stated(connection, retriever, events.c.document_id == document_id)


def events_of(connection: sa.Connection, retriever: str, ids: Sequence[int]) -> list[Event]:
    """The events of these ids, oldest first."""
    return [event for some in chunks(sorted(ids)) for event in _stated(connection, retriever, events.c.id.in_(some))]


def events_between(connection: sa.Connection, retriever: str, first: int, last: int) -> list[Event]:
    """The events of the ids `first` to `last`, oldest first."""
    return _stated(connection, retriever, events.c.id.between(first, last))


def _stated(connection: sa.Connection, retriever: str, condition: sa.ColumnElement[bool]) -> list[Event]:
    """Events with what became of them."""
    outcome = (sa.func.coalesce(outcomes.c.state, PENDING).label("state"), outcomes.c.reason, outcomes.c.generation)
    query = sa.select(events, *outcome).select_from(events.outerjoin(outcomes, _own(retriever))).where(condition)
    return [Event(**row._mapping) for row in connection.execute(query.order_by(events.c.id))]


def counts(connection: sa.Connection, retriever: str) -> dict[str, int]:
    """How many events are in each state, and how many rows were refused."""
    own = sa.select(outcomes.c.state, sa.func.count()).where(outcomes.c.retriever == retriever)
    found = dict(map(tuple, connection.execute(own.group_by(outcomes.c.state))))
    found[PENDING] = _count(connection, pending_query(connection, retriever))
    found[REJECTED] = connection.scalar(sa.select(sa.func.count()).select_from(rejections))
    return {state: found.get(state, 0) for state in STATES}


def lag(connection: sa.Connection, retriever: str, now: float) -> dict[str, Any]:
    """How many events are pending, and the age of the oldest in seconds (None if there is none)."""
    waiting = pending_query(connection, retriever).order_by(None).subquery()
    number, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(waiting.c.received))).one()
    return {"pending": number, "seconds": None if oldest is None else max(0.0, now - oldest)}


def newest(connection: sa.Connection) -> int:
    """The id of the last event, 0 without one: the watermark of all that has arrived."""
    return connection.scalar(sa.select(sa.func.max(events.c.id))) or 0


def refused(connection: sa.Connection, number: int) -> list[dict[str, Any]]:
    """The last `number` refused rows, newest first."""
    columns = (rejections.c[name] for name in ("row", "document_id", "reason", "source", "received"))
    query = sa.select(*columns).order_by(rejections.c.id.desc()).limit(number)
    return [dict(row._mapping) for row in connection.execute(query)]


def snapshot(connection: sa.Connection, retriever: str, watermark: int) -> Iterator[Document]:
    """The latest content, up to `watermark`, of each document that was put and not removed, by document id."""
    query = _latest(retriever, watermark).where(events.c.payload.is_not(None)).order_by(events.c.document_id)
    for rows in connection.execution_options(yield_per=ROWS).execute(query).partitions():
        for row in rows:
            yield Document.from_payload(row.document_id, row.payload)


def removed(connection: sa.Connection, retriever: str, watermark: int) -> list[str]:
    """The documents whose latest event up to `watermark` removed them, by id."""
    query = _latest(retriever, watermark).where(events.c.payload.is_(None)).order_by(events.c.document_id)
    return [row.document_id for row in connection.execute(query)]


def _latest(retriever: str, watermark: int) -> sa.Select[Any]:
    """The last event of each document up to `watermark` that was not rolled back."""
    ids = (
        sa.select(sa.func.max(events.c.id))
        .select_from(events.outerjoin(outcomes, _own(retriever)))
        .where(events.c.id <= watermark, sa.func.coalesce(outcomes.c.state, PENDING) != ROLLED_BACK)
        .group_by(events.c.document_id)
    )
    return sa.select(events.c.document_id, events.c.payload).where(events.c.id.in_(ids))


def _own(retriever: str) -> sa.ColumnElement[bool]:
    return (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever)


def _count(connection: sa.Connection, query: sa.Select[Any]) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(query.order_by(None).subquery())) or 0
