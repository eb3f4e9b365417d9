"""The audit log: an append-only file that records who changed what, and when.

A line names the actor, the action and a count. It refers to changes of documents by the ids of
their ledger events, so the ledger remains the only place that knows which documents they are. No
line holds the text of a query or a document, the value of a setting, or the id of a document.
Therefore no line has to change when a document is erased or a query is forgotten.

The actor is the user of the operating system, `token` for a request with the service's token, or
`anonymous` for a request to a service that needs no token.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from model_code.files import append_line

log = logging.getLogger(__name__)
# Actors of requests to the service.
TOKEN_ACTOR = "token"
ANONYMOUS_ACTOR = "anonymous"
# The actor of the request that is being answered. None: the user of the operating system.
_request_actor: ContextVar[str | None] = ContextVar("request_actor", default=None)


class AuditAction(StrEnum):
    """The kind of a change.

    - `PUT` adds documents or replaces their contents.
    - `REMOVE` removes documents, and `ERASE` deletes the contents of removed ones for good.
    - `RENAME` gives documents other ids.
    - `SOLVE` asks for new vectors of documents, because their known queries changed.
    - `REVERT` takes all documents back to an earlier generation.
    - `FEEDBACK` and `WITHDRAW` record and delete an opinion about a hit.
    - `FORGET` forgets a query.
    - `JUDGE` records own judgements.
    - `RETUNE` chooses the weights of a live fusion again.
    - `SETTINGS` changes values of `params.yaml`.
    """

    PUT = "put"
    REMOVE = "remove"
    ERASE = "erase"
    RENAME = "rename"
    SOLVE = "solve"
    REVERT = "revert"
    FEEDBACK = "feedback"
    WITHDRAW = "withdraw"
    FORGET = "forget"
    JUDGE = "judge"
    RETUNE = "retune"
    SETTINGS = "settings"


@dataclass(frozen=True)
class AuditEntry:
    """One line of the audit log.

    Attributes:
        time: Time of the change, in seconds since 1970.
        actor: Who made the change.
        action: One of the values of `AuditAction`.
        count: Number of documents, opinions, judgements or settings.
        events: Ranges of ids of ledger events, each with its first and last id.
        detail: Further facts, such as the names of settings.
    """

    time: float
    actor: str
    action: str
    count: int
    events: tuple[tuple[int, int], ...] = ()
    detail: str = ""


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Record the changes of the block as changes by `actor`."""
    token = _request_actor.set(actor)
    try:
        yield
    finally:
        _request_actor.reset(token)


def current_actor() -> str:
    """Return who makes the changes of this request, or else the user of the operating system."""
    return _request_actor.get() or os_user()


def os_user() -> str:
    """Return the name of the user who runs this process, or the number if there is no name."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


class AuditLog:
    """The audit log of a project.

    Args:
        path: The file. It is created by the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self, action: AuditAction, count: int = 1, events: Iterable[int] = (), detail: str = ""
    ) -> None:
        """Append a line about a change that has been made, and wait until it is on the disk.

        If the file cannot be written, the error is logged. The change itself is made already, and
        `freshet audit` lists changes of documents without a line as well.

        Args:
            action: Kind of the change.
            count: Number of changed things. Nothing is appended if it is 0.
            events: Ids of the ledger events of the change.
            detail: Further facts; no text of a query or document, and no secret.
        """
        if count == 0:
            return
        entry = AuditEntry(
            time.time(), current_actor(), str(action), count, id_ranges(events), detail
        )
        try:
            append_line(self.path, json.dumps(asdict(entry), ensure_ascii=False))
        except OSError as error:
            log.error("the audit log %s cannot be written: %s", self.path, error)

    def read(self) -> list[AuditEntry]:
        """Return all lines, oldest first. A line that a crash cut off is left out."""
        if not self.path.is_file():
            return []
        entries = []
        # `splitlines` would also split at U+2028, which JSON allows within a text.
        for line in self.path.read_text(encoding="utf-8").split("\n"):
            with suppress(ValueError):
                values = json.loads(line)
                values["events"] = tuple((first, last) for first, last in values["events"])
                entries.append(AuditEntry(**values))
        return entries


def id_ranges(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ids as ranges of consecutive ids.

    >>> id_ranges([7, 3, 4, 5])
    ((3, 5), (7, 7))
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(ids):
        if ranges:
            first, last = ranges[-1]
            if number == last + 1:
                ranges[-1] = (first, number)
                continue
        ranges.append((number, number))
    return tuple(ranges)
