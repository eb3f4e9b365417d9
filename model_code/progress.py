"""One line of progress for long work: how far, how fast, how long still. Silent unless it takes a
while.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[int, int, str], None]  # (done, total, unit or note)


def no_progress(done: int, total: int, note: str = "") -> None:
    """A `Progress` that shows nothing: the default of every library function."""


class LineProgress:
    """A `Progress` that prints `label 320/2,648 documents (41/s, 57 s left)`, at most once every
    `interval` seconds.
    """

    def __init__(self, label: str, interval: float = 5.0) -> None:
        self.label, self.interval = label, interval
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Print a line if the last one is old enough."""
        now = time.monotonic()
        if now - self.last < self.interval or not done:
            return
        self.last = now
        rate = done / (now - self.started)
        left = (total - done) / rate
        speed = f"{rate:,.1f}/s, {left:,.0f} s left"
        print(f"  {self.label}: {done:,}/{total:,} {note} ({speed})", file=sys.stderr, flush=True)


def report_each(items: Iterable[T], total: int, progress: Progress, note: str = "") -> Iterator[T]:
    """Yield `items`, reporting each finished one.

    >>> seen = []
    >>> list(tracked("ab", 2, lambda done, total, note: seen.append(done)))
    ['a', 'b']
    >>> seen
    [1, 2]
    """
    for done, item in enumerate(items, start=1):
        yield item
        progress(done, total, note)
