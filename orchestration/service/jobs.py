"""What one request wants changed, and the two answers it waits for: received in the ledger, and searchable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from model_code.ledger.records import Receipt

Row = Mapping[str, Any]


class Receipts(Protocol):
    """What of `orchestration.live.collection.LiveCollection` a job needs."""

    def receive(self, rows: Sequence[Row], source: str) -> Any:
        """Record documents to add or update in the ledger."""

    def remove(self, ids: Sequence[str], source: str) -> Any:
        """Record documents to delete in the ledger."""


@dataclass(frozen=True)
class Settled:
    """A job is done: `generation` contains it, `statuses` are those of every document of its batch.

    generation: None while the one that contains it cannot be opened, so that no search finds the documents yet.
    """

    generation: int | None
    statuses: Mapping[str, str]


class Job:
    """One request's documents. `received` and `applied` are never cancelled: the work goes on if the client leaves."""

    def __init__(self, size: int, receive: Callable[[Receipts], Any]) -> None:
        """size: documents; receive: what records them in the ledger and returns the receipt."""
        self.size, self.receive, self.arrived = size, receive, time.monotonic()
        self.received: Future[Any] = Future()
        self.applied: Future[Settled] = Future()
        for future in (self.received, self.applied):
            future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """Give `error` as the answer that is still missing."""
        for future in (self.received, self.applied):
            if not future.done():
                future.set_exception(error)


def addition(rows: Sequence[Row], source: str) -> Job:
    """A job that adds or updates documents."""
    return Job(len(rows), lambda live: live.receive(rows, source))


def application() -> Job:
    """A job that brings nothing: what the ledger has already becomes searchable."""
    return Job(0, lambda live: Receipt(0, 0, (), ()))


def deletion(document_ids: Sequence[str], source: str) -> Job:
    """A job that deletes documents."""
    return Job(len(document_ids), lambda live: live.remove(document_ids, source))
