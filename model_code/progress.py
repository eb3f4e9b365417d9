"""Progress of long work: one line with the amount done, the speed and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
# Called with the number of items done, their total, and a unit or note.
Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, note: str = "") -> None:
    """Show nothing. This is the default `Progress` of every library function."""


class LineProgress:
    """A `Progress` that prints `label: 320/2,648 documents (41.0/s, 57 s left)` to stderr.

    Args:
        label: The beginning of each line.
        interval: Seconds between two lines, at least. Shorter work prints nothing.
    """

    def __init__(self, label: str, interval: float = 5.0) -> None:
        self.label = label
        self.interval = interval
        self.started = time.monotonic()
        self.last_printed = self.started

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Print a line, unless the last one is too recent."""
        now = time.monotonic()
        is_too_soon = now - self.last_printed < self.interval
        # Without finished work, no speed is known.
        if is_too_soon or done == 0:
            return
        self.last_printed = now

        rate = done / (now - self.started)
        seconds_left = (total - done) / rate
        speed = f"{rate:,.1f}/s, {seconds_left:,.0f} s left"
        print(f"  {self.label}: {done:,}/{total:,} {note} ({speed})", file=sys.stderr, flush=True)


def report_each(items: Iterable[T], total: int, progress: Progress, note: str = "") -> Iterator[T]:
    """Yield `items`, and report each one when it is finished.

    >>> reported = []
    >>> list(report_each("ab", 2, lambda done, total, note: reported.append(done)))
    ['a', 'b']
    >>> reported
    [1, 2]
    """
    for done, item in enumerate(items, start=1):
        yield item
        progress(done, total, note)
