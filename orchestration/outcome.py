"""What came of `freshet add`, `update` and `delete`, as values and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from model_code.ledger.records import PENDING, Event

CHANGES = ("added", "updated", "deleted")


@dataclass
class Outcome:
    """What came of a command: document ids by what became of them, refused rows as plain values, the generation.

    behind: which other live retrievers could not take the documents in, and why.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    unchanged: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    generation: int | None = None
    behind: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether rows were refused and none was accepted."""
        return bool(self.rejected) and not (
            self.unchanged or self.added or self.updated or self.deleted or self.waiting
        )

    def count(self, events: Iterable[Event]) -> None:
        """Sort the documents of events by what became of them; one that was searchable before the call is unchanged."""
        for event in events:
            into = event.reason if event.reason in CHANGES else "waiting" if event.state == PENDING else None
            if into is None:
                self.unchanged += 1
            elif event.document_id not in (ids := getattr(self, into)):
                ids.append(event.document_id)


def outcome_text(outcome: Outcome) -> str:
    """The outcome in a line, and a line for each refused row."""
    lists = {name: len(getattr(outcome, name)) for name in ("added", "updated", "deleted", "waiting", "rejected")}
    parts = (lists | {"unchanged": outcome.unchanged}).items()
    line = ", ".join(f"{number:,} {what}" for what, number in parts if number) or "nothing to do"
    end = "" if outcome.generation is None else f" (generation {outcome.generation})"
    behind = (f"  behind    {name}  {reason}" for name, reason in sorted(outcome.behind.items()))
    return "\n".join([line + end, *map(_refused_text, outcome.rejected), *behind])


def _refused_text(one: dict[str, Any]) -> str:
    place = f"{one['file']}:{one['row']}  " if one["row"] is not None else ""
    return f"  rejected  {place}{one['document_id'] or '(no id)'}  {one['reason']}"
