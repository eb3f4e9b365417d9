"""What goes into the ledger and comes out of it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_code.documents import Change, Document, Remove

PUT, REMOVE = "put", "remove"
PENDING, LIVE, SUPERSEDED, DELETED = "pending", "live", "superseded", "deleted"
REJECTED, ROLLED_BACK, ABSORBED = "rejected", "rolled_back", "absorbed"
STATES = (PENDING, LIVE, SUPERSEDED, DELETED, REJECTED, ROLLED_BACK, ABSORBED)


@dataclass(frozen=True)
class Rejection:
    """A row that was refused: its number in its source (from 1), the id that it seems to have, and why."""

    row: int
    document_id: str | None
    reason: str


@dataclass(frozen=True)
class Receipt:
    """What became of rows that came in: `received` of them = new `events` + `unchanged` + `rejected`."""

    received: int
    unchanged: int
    rejected: tuple[Rejection, ...]
    events: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One line of the ledger: a document was put (with its `payload`) or removed, and what came of it.

    received: seconds since 1970; state: one of `STATES` but "rejected"; generation: the live generation that the event
    first became part of, None while it is pending.
    """

    id: int
    kind: str
    document_id: str
    content_hash: str
    payload: Mapping[str, Any] | None
    source: str
    received: float
    state: str = PENDING
    reason: str | None = None
    generation: int | None = None

    @property
    def document(self) -> Document | None:
        """The document as it arrived; None for a removal."""
        return None if self.payload is None else Document.from_payload(self.document_id, self.payload)

    @property
    def change(self) -> Change:
        """The event as the live collection's writer takes it."""
        return self.document or Remove(self.document_id)


@dataclass(frozen=True)
class Made:
    """A live generation as the ledger knows it: `watermark` is the last event that it contains.

    parent: the generation that was current when it was made; base: the generation that holds its encoder and its
    initial index, itself for a whole build. Generations with the same base build on each other's documents.
    """

    number: int
    parent: int | None
    base: int
    watermark: int


@dataclass(frozen=True)
class Position:
    """Where a retriever stands: its current generation, and the last event that was ever settled (`horizon`)."""

    generation: int
    base: int
    watermark: int
    horizon: int
