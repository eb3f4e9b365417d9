"""Types of the ledger: kinds and states of events, feedback, receipts, and ledger positions.

The ledger is the append-only log of a project. Each entry is called an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from model_code.corpus.rows import Rejection
from model_code.files import hash_text

# Result of `Ledger.mismatch` for a position that belongs to a ledger with another identity.
ANOTHER = "another log"


class EventKind(StrEnum):
    """The kind of an event.

    - `PUT` adds a document, or replaces its content.
    - `REMOVE` removes a document.
    - `SOLVE` asks for a new vector of a document, because its known queries changed.
    - `REVERT` ends the block of events that take all documents back to an earlier generation.
    """

    PUT = "put"
    REMOVE = "remove"
    SOLVE = "solve"
    REVERT = "revert"


class EventState(StrEnum):
    """The state of an event as seen from one generation, a snapshot of the index.

    - `PENDING`: not searchable yet.
    - `LIVE`: searchable.
    - `SUPERSEDED`: a later event changed the same document.
    - `DELETED`: the event removed a document.
    - `ROLLED_BACK`: a revert undid the event.
    - `ABSORBED`: searchable, and the retriever may have been trained on the document.
    - `REJECTED`: no state of an event. Tables of counts use it for the rows that were refused.
    """

    PENDING = "pending"
    LIVE = "live"
    SUPERSEDED = "superseded"
    DELETED = "deleted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    ABSORBED = "absorbed"


class Opinion(StrEnum):
    """A thumb up, a thumb down or a click on a hit."""

    UP = "up"
    DOWN = "down"
    CLICK = "click"


@dataclass(frozen=True)
class Feedback:
    """The opinion of a person about one hit of a query.

    Attributes:
        query: Text of the query.
        document_id: Id of the document that the hit showed.
        verdict: One of the values of `Opinion`.
        rank: Rank of the hit, from 1.
        who: Name of the person, or "" if unknown.
        received: Time in seconds since 1970.
        raised: Whether the hit was shown only because of known queries of the document.
    """

    query: str
    document_id: str
    verdict: str
    rank: int = 1
    who: str = ""
    received: float = 0.0
    raised: bool = False

    @property
    def key(self) -> str:
        """Hash of person, query and document. Only one opinion counts for each key."""
        return hash_text("\0".join((self.who, self.query, self.document_id)))


@dataclass(frozen=True)
class VersionCondition:
    """A condition of a change: the document must still have a certain version.

    It prevents that a client overwrites a change that it has not read. The version of a document is
    the hash of its content.

    Attributes:
        version: Version that the document must have. None if the document must not exist.
        base_version: Version of the document in the files of the generation. It is compared if
            the ledger has no event of the document. None if the files do not have it either.
        row: Number of the row that states the condition, from 1.
    """

    version: str | None
    base_version: str | None
    row: int = 1


@dataclass(frozen=True)
class Receipt:
    """The result of recording rows in the ledger.

    `received` is the sum of the numbers of new events, unchanged documents and rejected rows.

    Attributes:
        received: Number of rows.
        unchanged: Number of rows that change nothing.
        rejected: Rows that were refused, with their reasons.
        events: Ids of the new events.
    """

    received: int
    unchanged: int
    rejected: tuple[Rejection, ...]
    events: tuple[int, ...]


@dataclass(frozen=True)
class Position:
    """A ledger position: all events up to an event, in a certain ledger.

    Attributes:
        log: Identity of the ledger. None if there was no ledger yet. Such a position is valid in
            any ledger.
        event: Id of the last event that is included. 0 if no event is included.
        mark: Hash of this event. It detects a copy of the ledger that has another event with the
            same id. Empty for event 0.
    """

    log: str | None = None
    event: int = 0
    mark: str = ""


@dataclass(frozen=True)
class LedgerCursor:
    """The part of the ledger that a generation contains.

    Attributes:
        position: Position up to which events were applied.
        trained: Id of the last event whose document the retriever may have been trained on.
        replay: True if it is unknown which events the generation contains, because it comes from
            another ledger. Then all events after the position are applied, also events that were
            reverted.
    """

    position: Position = Position()
    trained: int = 0
    replay: bool = False
