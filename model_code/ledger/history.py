"""Which events count at a position of the log, and which lead from there to its end. Pure arithmetic of intervals.

A revert appends a block: compensations, then the event of the revert itself. So history only grows, and what counted at
a position is a list of a few intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
"""The events after the first number, up to the second."""


@dataclass(frozen=True)
class Revert:
    """The block of the events `first` to `id` that took the log back to what counted at the event `to`.

    files: the contents that it restored are those of a generation's files, as no event says where that stood: nobody
    may pass the block over.
    retriever, generation: what was searched again; current: the generation in whose place.
    """

    id: int
    first: int
    to: int
    files: bool = False
    retriever: str = ""
    generation: int = 0
    current: int = 0


class History:
    """All reverts of a log, oldest first."""

    def __init__(self, reverts: Sequence[Revert]) -> None:
        self.reverts = tuple(reverts)

    @property
    def blocks(self) -> list[Interval]:
        """The events that reverts appended to compensate others, and their own."""
        return [(revert.first - 1, revert.id) for revert in self.reverts]

    def effective(self, event: int) -> list[Interval]:
        """The events that count at a position, ascending: those that nobody took back by then.

        >>> History([Revert(id=6, first=5, to=2)]).effective(8)
        [(0, 2), (6, 8)]
        """
        return self._without_detours(0, event, over_files=True)

    def path(self, event: int, head: int, replay: bool = False) -> list[Interval]:
        """The events that lead from a position to that of `head`, ascending, without detours; with all if `replay`.

        A position that was taken back itself gets the compensations like any change.

        >>> history = History([Revert(id=6, first=5, to=2)])
        >>> history.path(1, 8), history.path(3, 8)
        ([(1, 2), (6, 8)], [(3, 8)])
        """
        return [(event, head)] if replay else self._without_detours(event, head, over_files=False)

    def _without_detours(self, start: int, top: int, over_files: bool) -> list[Interval]:
        """What leads from an event to another one, the blocks of reverts in place of what they took back."""
        kept: list[Interval] = []
        for revert in reversed(self.reverts):
            if start < revert.id <= top and revert.to >= start and (over_files or not revert.files):
                kept.append((revert.id, top))
                top = revert.to
        return [(first, last) for first, last in [(start, top), *reversed(kept)] if first < last]

    def end_of_block(self, event: int) -> int:
        """The end of the block that an event lies in, where a position may be; the event itself outside of them all.

        >>> History([Revert(id=6, first=4, to=2)]).end_of_block(5)
        6
        """
        return next((revert.id for revert in self.reverts if revert.first <= event <= revert.id), event)


def contains(intervals: Iterable[Interval], event: int) -> bool:
    """Whether an event is in one of the intervals."""
    return any(start < event <= end for start, end in intervals)
