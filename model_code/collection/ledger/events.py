"""Values of the ledger: kinds and states of events, feedback, receipts, and ledger positions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from model_code.corpus.rows import Rejection
from model_code.files import hash_text

# Reason of `Ledger.mismatch` for a position of a ledger with another identity.
ANOTHER = "another log"


class EventKind(StrEnum):
    """What an event does.

    It puts or removes a document, solves the vector of a document again, or ends the block of a
    revert.
    """

    PUT = "put"
    REMOVE = "remove"
    SOLVE = "solve"
    REVERT = "revert"


class EventState(StrEnum):
    """The state of an event as seen from one generation.

    `REJECTED` is no state of an event. It counts the rows that were refused, beside the events.
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
    """An opinion of a person about one hit of a query.

    Attributes:
        query: Text of the query.
        document_id: Document that the hit showed.
        verdict: One of `Opinion`.
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
        """Hash of person, query and document, for which one opinion counts."""
        return hash_text("\0".join((self.who, self.query, self.document_id)))


@dataclass(frozen=True)
class VersionCondition:
    """The condition of a change that its document has a version, which is its content hash.

    Attributes:
        version: Version that the document must have; None if it must not exist.
        base_version: Version of a document that no event names, in the files of the generation;
            None if there is no such document.
        row: Number of the row that states the condition, from 1.
    """

    version: str | None
    base_version: str | None
    row: int = 1


@dataclass(frozen=True)
class Receipt:
    """What became of received rows.

    The number `received` is the sum of new `events`, `unchanged` documents and `rejected` rows.
    """

    received: int
    unchanged: int
    rejected: tuple[Rejection, ...]
    events: tuple[int, ...]


@dataclass(frozen=True)
class Position:
    """A ledger position: an event, and the ledger that it belongs to.

    Attributes:
        log: Identity of the ledger; None if there was no ledger yet, which any ledger continues.
        event: Id of the event; all events up to it are included. 0 lies before the first event.
        mark: Hash of the event, which tells it from the event with the same id in a copy of the
            ledger. Event 0 has no mark.
    """

    log: str | None = None
    event: int = 0
    mark: str = ""


@dataclass(frozen=True)
class LedgerCursor:
    """The ledger position up to which a generation holds all documents.

    Attributes:
        position: Position up to which events were applied.
        trained: Last event whose document the retriever may have been trained on.
        replay: True if nothing is known about earlier events, such as for a build of another
            ledger. Then all events after the position are applied, also those that were reverted.
    """

    position: Position = Position()
    trained: int = 0
    replay: bool = False
