"""Queries that a model writes for documents that came without any: which lack them, and how they enter the ledger.

They are another put of the same content: its hash is that of what the user sent, so that the same row again says
nothing new, and another text comes without them. All functions run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from model_code.ledger.database import chunks
from model_code.ledger.intake import latest_ids
from model_code.ledger.reading import events_between, events_of, live_events_of
from model_code.ledger.records import LIVE, PUT, ROLLED_BACK, SUPERSEDED, WRITTEN, Event, Unwritten, Written
from model_code.ledger.schema import events, outcomes

BROUGHT_BY, GENERATOR = events.c.payload[(WRITTEN, "of")], events.c.payload[(WRITTEN, "generator")]


def unwritten(connection: sa.Connection, retriever: str, generator: str, again: bool) -> list[Unwritten]:
    """The live documents without queries, their own or written by `generator`, oldest event first.

    One whose written queries were rolled back is left as it is, but with `again`.
    """
    own = (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever)
    query = sa.select(events.c.id, events.c.document_id, outcomes.c.reason, BROUGHT_BY.as_integer().label("of"))
    query = query.select_from(events.join(outcomes, own)).where(
        outcomes.c.state == LIVE,
        sa.func.json_array_length(events.c.payload["queries"]) == 0,
        sa.func.coalesce(GENERATOR.as_string(), "") != generator,
    )
    asked = _asked(connection, retriever, generator, again)
    rows = connection.execute(query.order_by(events.c.id))
    return [Unwritten(row.id, row.document_id, row.reason) for row in rows if (row.of or row.id) not in asked]


def _asked(connection: sa.Connection, retriever: str, generator: str, again: bool) -> set[int]:
    """The events for whose text the generator has written already."""
    own = (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever)
    query = sa.select(BROUGHT_BY.as_integer()).select_from(events.outerjoin(outcomes, own))
    query = query.where(GENERATOR.as_string() == generator)
    if again:
        query = query.where(sa.func.coalesce(outcomes.c.state, "") != ROLLED_BACK)
    return set(connection.scalars(query))


def append(
    connection: sa.Connection, retriever: str, written: Sequence[Written], source: str, received: float
) -> tuple[int, ...]:
    """Add what was written for the text of an event, unless its document has a later event; return the new ids."""
    read = {one.id: one for one in events_of(connection, retriever, [each.event for each in written])}
    newest = latest_ids(connection, retriever, {one.document_id for one in read.values()})
    new = [
        _row(read[one.event], one) | {"source": source, "received": received}
        for one in written
        if one.event in read and newest.get(read[one.event].document_id) == one.event and read[one.event].payload
    ]
    if not new:
        return ()
    insert = sa.insert(events).returning(events.c.id, sort_by_parameter_order=True)
    return tuple(connection.scalars(insert, new))


def _row(read: Event, written: Written) -> dict[str, object]:
    """The event as a row of the table, with what was written for it in place of what was written before."""
    brought_by = read.written.event if read.written else read.id
    own = {"of": brought_by, "generator": written.generator, "queries": list(written.queries)}
    payload = {**(read.payload or {}), WRITTEN: own}
    return {"kind": PUT, "document_id": read.document_id, "content_hash": read.content_hash, "payload": payload}


def arrivals(connection: sa.Connection, retriever: str, first: int, last: int) -> list[Event]:
    """The puts from the id `first` to `last` whose document is live as it arrived then, oldest first.

    One that was given queries since has the payload that is live; to be given queries is no arrival.
    """
    found = [one for one in events_between(connection, retriever, first, last) if one.kind == PUT and not one.written]
    overtaken = sorted({one.document_id for one in found if one.state == SUPERSEDED})
    live = [one for ids in chunks(overtaken) for one in live_events_of(connection, retriever, ids)]
    given = {one.written.event: one for one in live if one.written}
    told = [replace(one, payload=given[one.id].payload, state=LIVE) if one.id in given else one for one in found]
    return [one for one in told if one.state == LIVE]
