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


def unwritten(connection: sa.Connection, retriever: str, generator: str, since: int, again: bool) -> list[Unwritten]:
    """The live documents without queries, their own or written by `generator`, oldest event first.

    since: only those whose text came after this event; no earlier one is read. One whose written queries were rolled
    back is left as it is, but with `again`.
    """
    own = (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever)
    query = sa.select(events.c.id, events.c.document_id, outcomes.c.reason, BROUGHT_BY.as_integer().label("of"))
    query = query.select_from(events.join(outcomes, own)).where(
        events.c.id > since,
        outcomes.c.state == LIVE,
        sa.func.json_array_length(events.c.payload["queries"]) == 0,
        sa.func.coalesce(GENERATOR.as_string(), "") != generator,
    )
    asked = _asked(connection, retriever, generator, since, again)
    rows = connection.execute(query.order_by(events.c.id))
    texts = ((row.of or row.id, row) for row in rows)
    return [Unwritten(row.id, row.document_id, row.reason) for text, row in texts if text > since and text not in asked]


def _asked(connection: sa.Connection, retriever: str, generator: str, since: int, again: bool) -> set[int]:
    """The events after `since` for whose text the generator has written already."""
    own = (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever)
    query = sa.select(BROUGHT_BY.as_integer()).select_from(events.outerjoin(outcomes, own))
    query = query.where(events.c.id > since, GENERATOR.as_string() == generator)
    if again:
        query = query.where(sa.func.coalesce(outcomes.c.state, "") != ROLLED_BACK)
    return set(connection.scalars(query))


def append(
    connection: sa.Connection, retriever: str, written: Sequence[Written], source: str, received: float
) -> tuple[int, ...]:
    """Add what was written for the text of an event, unless its document has a later event; return the new ids.

    Of several for one event the last counts, as of several rows of one document.
    """
    read = {one.id: one for one in events_of(connection, retriever, [each.event for each in written])}
    newest = latest_ids(connection, retriever, {one.document_id for one in read.values()})
    new = [
        _row(read[one.event], one) | {"source": source, "received": received}
        for one in {one.event: one for one in written}.values()
        if one.event in read and newest.get(read[one.event].document_id) == one.event and read[one.event].payload
    ]
    if not new:
        return ()
    insert = sa.insert(events).returning(events.c.id, sort_by_parameter_order=True)
    ids = tuple(connection.scalars(insert, new))
    withdraw(connection, ids)
    return ids


def withdraw(connection: sa.Connection, ids: Sequence[int]) -> None:
    """Of the events `ids`, which brought written queries, roll back those that are pending where their text was.

    They hold that text, too, and nobody asked for it again.
    """
    text, own = outcomes.alias(), outcomes.alias()
    settled = (own.c.event_id == events.c.id) & (own.c.retriever == text.c.retriever)
    join = events.join(text, text.c.event_id == BROUGHT_BY.as_integer()).outerjoin(own, settled)
    query = sa.select(text.c.retriever, events.c.id.label("event_id"), text.c.state, text.c.generation)
    query = query.select_from(join).where(text.c.state == ROLLED_BACK, own.c.event_id.is_(None))
    for some in chunks(list(ids)):
        rows = [dict(row._mapping) for row in connection.execute(query.where(events.c.id.in_(some)))]
        if rows:
            connection.execute(sa.insert(outcomes), rows)


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
