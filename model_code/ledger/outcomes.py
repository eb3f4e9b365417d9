"""What became of events: settled by a new generation, or stated anew when another generation becomes current.

A generation contains the events that it and its ancestors applied; an ancestor is reached through `parent` as long as
the base stays the same. All functions run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from model_code.errors import FreshetError
from model_code.ledger.database import chunks
from model_code.ledger.reading import pending_query, position_of
from model_code.ledger.records import ABSORBED, DELETED, LIVE, PUT, ROLLED_BACK, SUPERSEDED, Made
from model_code.ledger.schema import applied, events, generations, outcomes, positions

VISIBLE = (LIVE, DELETED, ABSORBED)  # the state of a document's last settled event


def settle(connection: sa.Connection, retriever: str, made: Made, reasons: Mapping[str, str]) -> None:
    """Every pending event up to the generation's watermark is part of it: it is current from now on.

    reasons: a remark on documents, by id.
    """
    if known(connection, retriever, made.number) is None:
        connection.execute(sa.insert(generations).values(retriever=retriever, **vars(made)))
    rows = list(connection.execute(pending_query(connection, retriever, made.watermark)))
    _supersede(connection, retriever, {row.document_id for row in rows})
    last = {row.document_id: row.id for row in rows}
    common = {"retriever": retriever, "generation": made.number}
    if rows:
        connection.execute(sa.insert(applied), [common | {"event_id": row.id} for row in rows])
        states = [
            {"event_id": row.id, "state": _final(row.kind) if last[row.document_id] == row.id else SUPERSEDED,
             "reason": reasons.get(row.document_id)}
            for row in rows
        ]  # fmt: skip
        connection.execute(sa.insert(outcomes), [common | state for state in states])
    _move(connection, retriever, made, horizon_at_least=made.watermark)


def register(connection: sa.Connection, retriever: str, made: Made, searched: str | None = None) -> None:
    """Make a generation known that the ledger has not settled itself, with the events that it contains.

    Those are all events up to its watermark that count and that no ancestor contains: of a whole build all that went
    into its corpus, of any other generation those after its parent's watermark. searched: the retriever whose documents
    went into that corpus, if it is another one: what was rolled back there is not among them.
    """
    if known(connection, retriever, made.number) is not None:
        return
    parent = None if made.parent is None or made.base == made.number else known(connection, retriever, made.parent)
    connection.execute(sa.insert(generations).values(retriever=retriever, **vars(made)))
    whole = made.base == made.number
    undone = _undone(searched or retriever) if whole else _undone(retriever, searched)
    ids = connection.scalars(
        sa.select(events.c.id).where(
            events.c.id <= made.watermark, events.c.id > (parent.watermark if parent else 0), events.c.id.not_in(undone)
        )
    ).all()
    if ids:
        common = {"retriever": retriever, "generation": made.number}
        connection.execute(sa.insert(applied), [common | {"event_id": one} for one in ids])


def restate(
    connection: sa.Connection, retriever: str, number: int, undo: bool, searched: str | None = None
) -> None:  # fmt: skip
    """Generation `number` is current: state every event anew by whether it contains it.

    An event that it lacks is rolled back if `undo`, or if it was before, here or for the retriever `searched`; else it
    is pending again, unless the generation holds a later one of the same document. FreshetError if the generation is
    unknown.
    """
    made = known(connection, retriever, number)
    if made is None:
        raise FreshetError(f"the ledger knows no generation {number} of {retriever!r}; `freshet status` shows it")
    lineage, root = _lineage(connection, retriever, made)
    contained = _contained(connection, retriever, lineage)
    before = _stated(connection, retriever)
    after, last = _states(connection, contained, root.watermark)
    undone = set(connection.scalars(_undone(retriever, searched)))
    lacking = (before.keys() | undone) - after.keys()
    if undo:
        after |= dict.fromkeys(lacking, ROLLED_BACK)
    else:
        overtaken = {row.id for row in _rows(connection, lacking) if last.get(row.document_id, 0) > row.id}
        after |= dict.fromkeys(overtaken, SUPERSEDED)
        after |= dict.fromkeys(lacking & undone, ROLLED_BACK)
    _write(connection, retriever, before, after, dict.fromkeys(lacking, number) | contained)
    position = position_of(connection, retriever)
    reopened = [event for event in before if event not in after]
    horizon = max(position.horizon if position else 0, made.watermark)
    _move(connection, retriever, made, horizon_at_least=min([horizon, *(event - 1 for event in reopened)]), exact=True)


def undone_in(connection: sa.Connection, retriever: str, number: int, searched: str | None) -> int:
    """How many events that were rolled back since, here or for `searched`, are the last of their document in a
    generation; 0 for an unknown one.
    """
    undone, made = set(connection.scalars(_undone(retriever, searched))), known(connection, retriever, number)
    if made is None or not undone:
        return 0
    lineage, root = _lineage(connection, retriever, made)
    _, last = _states(connection, _contained(connection, retriever, lineage), root.watermark)
    return len(undone.intersection(last.values()))


def absorb(connection: sa.Connection, retriever: str, watermark: int) -> None:
    """Live events up to `watermark` are part of a training run's corpus now."""
    chosen = (outcomes.c.retriever == retriever) & (outcomes.c.state == LIVE) & (outcomes.c.event_id <= watermark)
    connection.execute(sa.update(outcomes).where(chosen).values(state=ABSORBED))


def _final(kind: str) -> str:
    return LIVE if kind == PUT else DELETED


def _supersede(connection: sa.Connection, retriever: str, document_ids: Iterable[str]) -> None:
    """The settled events of these documents; found by id first, as a join in the update would read every outcome."""
    earlier: list[int] = []
    for some in chunks(sorted(document_ids)):
        earlier += connection.scalars(sa.select(events.c.id).where(events.c.document_id.in_(some)))
    for ids in chunks(earlier):
        chosen = (outcomes.c.retriever == retriever) & outcomes.c.event_id.in_(ids) & outcomes.c.state.in_(VISIBLE)
        connection.execute(sa.update(outcomes).where(chosen).values(state=SUPERSEDED))


def known(connection: sa.Connection, retriever: str, number: int) -> Made | None:
    """The generation as the ledger knows it, None if it does not."""
    same = (generations.c.retriever == retriever) & (generations.c.number == number)
    row = connection.execute(sa.select(generations).where(same)).first()
    return None if row is None else Made(row.number, row.parent, row.base, row.watermark)


def newest_known(connection: sa.Connection, retriever: str) -> int | None:
    """The largest number of a generation of the retriever, None if the ledger knows none."""
    return connection.scalar(sa.select(sa.func.max(generations.c.number)).where(generations.c.retriever == retriever))


def _lineage(connection: sa.Connection, retriever: str, made: Made) -> tuple[list[int], Made]:
    """The generation and its ancestors of the same base, and the eldest of them."""
    numbers = [made.number]
    while made.parent is not None and made.base != made.number:
        parent = known(connection, retriever, made.parent)
        if parent is None or parent.base != made.base:
            break
        numbers.append(parent.number)
        made = parent
    return numbers, made


def _contained(connection: sa.Connection, retriever: str, lineage: Sequence[int]) -> dict[int, int]:
    """Event -> the generation of `lineage` that applied it first."""
    found: dict[int, int] = {}
    for numbers in chunks(sorted(lineage)):
        chosen = (applied.c.retriever == retriever) & applied.c.generation.in_(numbers)
        rows = connection.execute(sa.select(applied.c.event_id, applied.c.generation).where(chosen))
        for event, generation in sorted(map(tuple, rows), key=lambda row: row[1]):
            found.setdefault(event, generation)
    return found


def _undone(*retrievers: str | None) -> sa.Select[Any]:
    """The ids of the events that are rolled back for one of the retrievers."""
    own = outcomes.c.retriever.in_(list(filter(None, retrievers)))
    return sa.select(outcomes.c.event_id).where(own, outcomes.c.state == ROLLED_BACK)


def _stated(connection: sa.Connection, retriever: str) -> dict[int, str]:
    rows = sa.select(outcomes.c.event_id, outcomes.c.state).where(outcomes.c.retriever == retriever)
    return dict(map(tuple, connection.execute(rows)))


def _states(
    connection: sa.Connection, contained: Mapping[int, int], absorbed: int
) -> tuple[dict[int, str], dict[str, int]]:
    """The state of each contained event, and the last event of each document, which is the one that counts.

    Puts up to the event `absorbed` were trained on.
    """
    states: dict[int, str] = {}
    last: dict[str, int] = {}
    for row in _rows(connection, contained):
        if row.document_id in last:
            states[last[row.document_id]] = SUPERSEDED
        last[row.document_id] = row.id
        states[row.id] = ABSORBED if row.kind == PUT and row.id <= absorbed else _final(row.kind)
    return states, last


def _rows(connection: sa.Connection, ids: Iterable[int]) -> Iterator[sa.Row[Any]]:
    """Id, kind and document of events, oldest first."""
    for some in chunks(sorted(ids)):
        rows = sa.select(events.c.id, events.c.kind, events.c.document_id).where(events.c.id.in_(some))
        yield from connection.execute(rows.order_by(events.c.id))


def _write(
    connection: sa.Connection,
    retriever: str,
    before: Mapping[int, str],
    after: Mapping[int, str],
    generation: Mapping[int, int],
) -> None:
    """Turn the outcomes `before` into `after`, touching only what differs; generation: what a new one names."""
    own = outcomes.c.retriever == retriever
    for ids in chunks(sorted(before.keys() - after.keys())):
        connection.execute(sa.delete(outcomes).where(own, outcomes.c.event_id.in_(ids)))
    changed = sorted((after[event], event) for event in before.keys() & after.keys() if before[event] != after[event])
    for state, group in groupby(changed, key=lambda item: item[0]):
        for ids in chunks([event for _, event in group]):
            connection.execute(sa.update(outcomes).where(own, outcomes.c.event_id.in_(ids)).values(state=state))
    new = [
        {"retriever": retriever, "event_id": event, "state": after[event], "generation": generation[event]}
        for event in sorted(after.keys() - before.keys())
    ]
    if new:
        connection.execute(sa.insert(outcomes), new)


def _move(connection: sa.Connection, retriever: str, made: Made, horizon_at_least: int, exact: bool = False) -> None:
    position = position_of(connection, retriever)
    horizon = horizon_at_least if exact or position is None else max(position.horizon, horizon_at_least)
    values: dict[str, Any] = {
        "generation": made.number, "base": made.base, "watermark": made.watermark, "horizon": horizon
    }  # fmt: skip
    if position is None:
        connection.execute(sa.insert(positions).values(retriever=retriever, **values))
    else:
        connection.execute(sa.update(positions).where(positions.c.retriever == retriever).values(values))
