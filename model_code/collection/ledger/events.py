"""What goes into the log, and where a generation stands in it, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from model_code.corpus.rows import Rejection
from model_code.files import hash_text

ANOTHER = "another log"  # why a position is none of a log's own


class EventKind(StrEnum):
    """What an event does: a document is put or removed; a revert ends the block that it appended."""

    PUT = "put"
    REMOVE = "remove"
    REVERT = "revert"


class EventState(StrEnum):
    """What became of an event in one generation; a row that was refused is none, but is counted
    beside them.
    """

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
    """A verdict of `who` on a document that was the `rank`-th hit (from 1) of a query; received:
    seconds since 1970.
    """

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
class Receipt:
    """What became of rows that came in: `received` of them = new `events` + `unchanged` +
    `rejected`.
    """

    received: int
    unchanged: int
    rejected: tuple[Rejection, ...]
    events: tuple[int, ...]


@dataclass(frozen=True)
class Position:
    """An event, and the log that it is of: all up to this one. Event 0 has no mark: it lies before
    the first.

    log: the log's identity; None where there was none, which every log continues.
    """

    log: str | None = None
    event: int = 0
    mark: str = ""


@dataclass(frozen=True)
class LedgerCursor:
    """Where a generation stands: the position up to which it holds all documents.

    trained: the last event of which its retriever may have been trained; replay: it says nothing of
    the events before, so that all events after the position are to be applied, and none is passed
    over.
    """

    position: Position = Position()
    trained: int = 0
    replay: bool = False
