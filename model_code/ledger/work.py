"""Work: what a project has to do next (an addition, a pilot, a retrain), and what came of it.

Work is asked for once: while it is open, asking for the same returns it. One that fails is tried again, at most
`ATTEMPTS` times; then a person must look. Its id is random, as Dagster never forgets a run's key and another log would
give the same numbers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

ATTEMPTS = 3  # at the same work; after so many failures a person must look


class WorkKind(StrEnum):
    """What is to be done: apply what waits, train on a sample of what is live, or train on all of it."""

    ADD = "add"
    PILOT = "pilot"
    RETRAIN = "retrain"


class WorkState(StrEnum):
    """`OPEN` while it is due or runs. `REFUSED`: done, and it led to nothing, as the gate or the pilot says."""

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, order=True)
class EventRange:
    """The events of the log from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True)
class Work:
    """Something to do for a retriever, and why.

    about: the events that it is about; None where a person asked. attempts: including the one that is due. asked_by:
    "sensor", "drift", "person", or the id of the pilot that asked. asked, ended: seconds since 1970. outcome: what came
    of it, in words; details: the same as plain values.
    """

    id: str
    kind: WorkKind
    retriever: str
    about: EventRange | None
    state: WorkState
    attempts: int
    reason: str
    asked_by: str
    asked: float
    run_id: str | None = None
    ended: float | None = None
    outcome: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The work as plain values."""
        about = [self.about.first, self.about.last] if self.about else None
        return {**vars(self), "about": about, "details": dict(self.details)}

    @property
    def run_key(self) -> str:
        """The key of the Dagster run of this attempt, which also names its partition and the folder that it works in.

        It is compared, never parsed. Kind and moment are for people; what is random makes it unlike any other.
        """
        asked = datetime.fromtimestamp(self.asked, UTC)
        return f"{self.kind}-{asked:%Y-%m-%d-%H%M}-{self.id[-8:]}-{self.attempts}"
