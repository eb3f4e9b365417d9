"""What goes into the log and comes out of it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from model_code.documents import Change, Document, Remove
from model_code.files import hash_text

ANOTHER = "another log"  # why a position is none of a log's own


class EventKind(StrEnum):
    """What an event does: a document is put or removed; a revert ends the block that it appended."""

    PUT = "put"
    REMOVE = "remove"
    REVERT = "revert"


class EventState(StrEnum):
    """What became of an event in one generation; a row that was refused is none, but is counted beside them."""

    PENDING = "pending"
    LIVE = "live"
    SUPERSEDED = "superseded"
    DELETED = "deleted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    ABSORBED = "absorbed"


class Opinion(StrEnum):
    """What a person said of a document that a search found, with a thumb or by opening it."""

    UP = "up"
    DOWN = "down"
    CLICK = "click"


@dataclass(frozen=True)
class Feedback:
    """A verdict of `who` on a document that was the `rank`-th hit (from 1) of a query; received: seconds since 1970."""

    query: str
    document_id: str
    verdict: str
    rank: int = 1
    who: str = ""
    received: float = 0.0

    @property
    def key(self) -> str:
        """Of person, query and document."""
        return hash_text("\0".join((self.who, self.query, self.document_id)))


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
    """A line of the log: a document was put (with its `payload`) or removed.

    received: seconds since 1970; again: the event that this one repeats, which waited while a revert came; state: what
    became of it in the generation that was asked about, None for what a revert appended and where nothing was asked.
    """

    id: int
    kind: str
    document_id: str
    content_hash: str
    payload: Mapping[str, Any] | None
    source: str
    received: float
    again: int | None = None
    state: EventState | None = None

    @property
    def document(self) -> Document | None:
        """The document as it arrived; None for a removal, and for what was erased."""
        put = self.kind == EventKind.PUT and self.payload is not None
        return Document.from_payload(self.document_id, self.payload) if put else None

    @property
    def change(self) -> Change:
        """The event as the live collection's writer takes it."""
        return self.document or Remove(self.document_id)


def mark(event: int, received: float, document_id: str, content_hash: str) -> str:
    """Eight hexadecimal digits that tell an event from those that other logs have under its number.

    >>> mark(1, 0.1, "a", "b")
    'c85b8cf8'
    """
    return hash_text(f"{event} {received!r} {document_id} {content_hash}")[:8]


@dataclass(frozen=True)
class Position:
    """An event, and the log that it is of: all up to this one. Event 0 has no mark: it lies before the first.

    log: the log's identity; None where there was none, which every log continues.
    """

    log: str | None = None
    event: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Standing:
    """Where a generation stands: the position up to which it holds all documents.

    trained: the last event of which its retriever may have been trained; replay: it says nothing of the events before,
    so that all events after the position are to be applied, and none is passed over.
    """

    position: Position = Position()
    trained: int = 0
    replay: bool = False
