"""Drift reports and training runs, as the ledger remembers them. All run in their caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from model_code.ledger.schema import drift_reports, training_runs


def record_drift(
    connection: sa.Connection, retriever: str, report: Mapping[str, Any], batch: tuple[int, int], now: float
) -> int:
    """Keep a drift report on the events `batch` (first and last id); return its own id."""
    values = {"retriever": retriever, "first_event": batch[0], "last_event": batch[1], "recorded": now}
    return connection.execute(sa.insert(drift_reports).values(report=dict(report), **values)).inserted_primary_key[0]


def record_run(connection: sa.Connection, retriever: str, run: str, watermark: int, now: float) -> None:
    """Keep that a training run absorbed the events up to `watermark`; a second time changes nothing."""
    same = (training_runs.c.retriever == retriever) & (training_runs.c.run == run)
    if connection.execute(sa.select(training_runs).where(same)).first() is None:
        values = {"retriever": retriever, "run": run, "watermark": watermark, "recorded": now}
        connection.execute(sa.insert(training_runs).values(values))


def last(connection: sa.Connection, table: sa.Table, retriever: str, number: int) -> list[dict[str, Any]]:
    """The last `number` rows of a table of this file, newest first."""
    newest = table.c.recorded.desc(), *([table.c.id.desc()] if "id" in table.c else [])
    query = sa.select(table).where(table.c.retriever == retriever).order_by(*newest).limit(number)
    return [dict(row._mapping) for row in connection.execute(query)]
