"""Up to which event of the ledger something holds all documents, in a form that another ledger does not mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from model_code.files import hash_text
from orchestration.ledgers import existing_ledger
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.ledger.records import Event


@dataclass(frozen=True)
class Watermark:
    """The last `event` that is contained, 0 for none, and its mark.

    Events are numbered from 1 in every ledger: one that was begun anew, or restored from a backup, gives the same
    number to another document. The mark tells them apart.
    """

    event: int = 0
    mark: str = ""

    @classmethod
    def at(cls, project: Project, event: int) -> Watermark:
        """The event of this number in the project's ledger; of none, if it has no such event."""
        mark = _mark_in(project, event)
        return cls(event, mark) if mark else cls()

    def here(self, project: Project) -> int:
        """The event's number if the project's ledger has that very event, else 0: then all that it has is new."""
        return self.event if self.event and _mark_in(project, self.event) == self.mark else 0


NOTHING = Watermark()


def mark_of(event: Event) -> str:
    """Eight hexadecimal digits that tell an event from those that other ledgers have under its number."""
    return hash_text(f"{event.id} {event.received!r} {event.document_id} {event.content_hash}")[:8]


def _mark_in(project: Project, event: int) -> str:
    ledger = existing_ledger(project, "")  # events belong to no retriever
    if ledger is None:
        return ""
    try:
        return next(map(mark_of, ledger.events([event])), "")
    finally:
        ledger.close()
