"""How documents enter the ledger: an event for each change, none for what it says already, a line for what is refused.

All functions run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from model_code.documents import Document
from model_code.files import hash_text
from model_code.ledger.database import chunks
from model_code.ledger.records import PUT, REMOVE, ROLLED_BACK, Rejection
from model_code.ledger.schema import batches, events, outcomes, rejections

Latest = Mapping[str, tuple[str, str]]  # document id -> kind and content hash of its latest event that counts


def put_rows(documents: Iterable[Document]) -> list[dict[str, Any]]:
    """Documents that arrived, as rows of the table of events."""
    return [
        {"kind": PUT, "document_id": one.document_id, "content_hash": one.content_hash, "payload": one.payload}
        for one in documents
    ]


def remove_rows(document_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Removals, as rows of the table of events."""
    return [{"kind": REMOVE, "document_id": one, "content_hash": "", "payload": None} for one in document_ids]


def append(
    connection: sa.Connection, retriever: str, rows: Sequence[dict[str, Any]], source: str, received: float
) -> tuple[int, ...]:
    """Add those of `rows`, in their order, that differ from their document's latest event; return the new ids.

    Of several rows of one document the last counts. The others make no events: each would undo the one before it, and
    the same rows once more would do all of that again.
    """
    last = {row["document_id"]: place for place, row in enumerate(rows)}
    known = latest(connection, retriever, last)
    new = [
        row | {"source": source, "received": received}
        for place, row in enumerate(rows)
        if last[row["document_id"]] == place and known.get(row["document_id"]) != (row["kind"], row["content_hash"])
    ]
    if not new:
        return ()
    insert = sa.insert(events).returning(events.c.id, sort_by_parameter_order=True)
    return tuple(connection.scalars(insert, new))


def latest(connection: sa.Connection, retriever: str, document_ids: Iterable[str]) -> Latest:
    """The latest event of each document that was not rolled back; documents without one are left out."""
    columns, found = (events.c.document_id, events.c.kind, events.c.content_hash), {}
    for ids in chunks(sorted(latest_ids(connection, retriever, document_ids).values())):
        for row in connection.execute(sa.select(*columns).where(events.c.id.in_(ids))):
            found[row.document_id] = (row.kind, row.content_hash)
    return found


def latest_ids(connection: sa.Connection, retriever: str, document_ids: Iterable[str]) -> dict[str, int]:
    """The ids of these events, by document."""
    join = events.outerjoin(outcomes, (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever))
    counts = sa.or_(outcomes.c.state.is_(None), outcomes.c.state != ROLLED_BACK)
    found: dict[str, int] = {}
    for ids in chunks(sorted(document_ids)):
        newest = sa.select(events.c.document_id, sa.func.max(events.c.id)).select_from(join)
        chosen = newest.where(events.c.document_id.in_(ids), counts).group_by(events.c.document_id)
        found |= dict(map(tuple, connection.execute(chosen)))
    return found


def refuse(connection: sa.Connection, refused: Sequence[Rejection], source: str, received: float) -> None:
    """Record refused rows; of one that was recorded before (same source, place and reason) the time is renewed."""
    rows = {_identity(one, source): one for one in refused}
    for hashes in chunks(sorted(rows)):
        same = rejections.c.hash.in_(hashes)
        for (known,) in connection.execute(sa.select(rejections.c.hash).where(same)).all():
            del rows[known]
        connection.execute(sa.update(rejections).where(same).values(received=received))
    values = [vars(one) | {"hash": identity, "source": source, "received": received} for identity, one in rows.items()]
    if values:
        connection.execute(sa.insert(rejections), values)


def _identity(refused: Rejection, source: str) -> str:
    return hash_text("\0".join((source, str(refused.row), refused.document_id or "", refused.reason)))


def not_received(
    connection: sa.Connection, retriever: str, batch: str, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of a batch to receive: all of a new one; of a known one those refused then, or rolled back since.

    The others were received: a later change or removal of their documents stands.
    """
    if connection.scalar(sa.select(batches.c.batch).where(batches.c.batch == batch)) is None:
        return list(rows)
    last = {row["document_id"]: row for row in rows}  # the only one of its document that `append` took
    standing = _standing(connection, retriever, last)
    return [row for row in last.values() if (row["document_id"], row["content_hash"]) not in standing]


def note_batch(connection: sa.Connection, batch: str, source: str, received: float) -> None:
    """From now on the batch was received."""
    values, named = {"source": source, "received": received}, batches.c.batch == batch
    if connection.execute(sa.update(batches).where(named).values(**values)).rowcount == 0:
        connection.execute(sa.insert(batches).values(batch=batch, **values))


def _standing(connection: sa.Connection, retriever: str, document_ids: Iterable[str]) -> set[tuple[str, str]]:
    """Document and content hash of what was put and, the last time that it was, is not rolled back."""
    join = events.outerjoin(outcomes, (outcomes.c.event_id == events.c.id) & (outcomes.c.retriever == retriever))
    columns = (events.c.document_id, events.c.content_hash, outcomes.c.state)
    last: dict[tuple[str, str], str | None] = {}
    for ids in chunks(sorted(document_ids)):
        query = sa.select(*columns).select_from(join).where(events.c.document_id.in_(ids), events.c.kind == PUT)
        last |= {(one, content): state for one, content, state in connection.execute(query.order_by(events.c.id))}
    return {said for said, state in last.items() if state != ROLLED_BACK}
