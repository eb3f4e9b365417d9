"""Arrays that grow row by row without being copied each time, and tell who asks which rows changed."""

from __future__ import annotations

import weakref

import numpy as np

LEAST_ROOM = 16


class Changes:
    """What one reader of `GrowingRows` has yet to see: every row from `first` on."""

    def __init__(self) -> None:
        self.first = 0


class GrowingRows:
    """Rows of one shape and type; appending costs O(1) rows on average.

    There is room for an eighth more rows from the start, and again whenever it is used up; unused room takes no memory
    until it is written to.

    >>> rows = GrowingRows(np.zeros((1, 2)))
    >>> rows.append(np.ones((2, 2)))
    >>> rows.delete(np.array([0]))
    >>> rows.view.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, rows: np.ndarray) -> None:
        self._stored = _with_room(rows, len(rows))
        self._count = len(rows)
        self._watching: weakref.WeakSet[Changes] = weakref.WeakSet()

    def __len__(self) -> int:
        return self._count

    @property
    def view(self) -> np.ndarray:
        """The rows there are, without a copy; valid until the next change."""
        return self._stored[: self._count]

    def append(self, rows: np.ndarray) -> None:
        """Add `rows` at the end."""
        needed = self._count + len(rows)
        if needed > len(self._stored):
            self._stored = _with_room(self.view, needed)
        self._stored[self._count : needed] = rows
        self._note(self._count)
        self._count = needed

    def replace(self, row: int, value: np.ndarray) -> None:
        """Overwrite one row."""
        self._stored[row] = value
        self._note(row)

    def delete(self, rows: np.ndarray) -> None:
        """Take out `rows` (sorted positions); later rows move up, so the order stays."""
        if len(rows):
            kept = np.delete(self.view[rows[0] :], rows - rows[0], axis=0)
            self._count = int(rows[0]) + len(kept)
            self._stored[rows[0] : self._count] = kept
            self._note(int(rows[0]))

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        self._count = count
        self._note(count)

    def copy(self) -> GrowingRows:
        """An independent copy, which nobody watches."""
        return GrowingRows(self.view)

    def watch(self) -> Changes:
        """A record of changes for one reader, such as a mirror on another device; the reader sets `first` itself."""
        changes = Changes()
        self._watching.add(changes)
        return changes

    def _note(self, row: int) -> None:
        for changes in self._watching:
            changes.first = min(changes.first, row)


class Largest:
    """The largest of numbers that grow, 0 if there are none: looks only at those that are new since the last time.

    >>> rows = GrowingRows(np.array([1.0, 5.0]))
    >>> largest = Largest(rows)
    >>> rows.append(np.array([7.0]))
    >>> largest.value()
    7.0
    >>> rows.truncate(2)
    >>> largest.value()
    5.0
    """

    def __init__(self, rows: GrowingRows) -> None:
        self._rows, self._changes = rows, rows.watch()
        self._counted, self._value = 0, 0.0

    def value(self) -> float:
        """The largest number there is now."""
        if self._changes.first < self._counted:  # one that counted has changed or gone
            self._changes.first, self._value = 0, 0.0
        self._value = float(self._rows.view[self._changes.first :].max(initial=self._value))
        self._counted = self._changes.first = len(self._rows)
        return self._value


def _with_room(rows: np.ndarray, count: int) -> np.ndarray:
    """A copy of `rows` in an array for `count` and more."""
    stored = np.empty((count + count // 8 + LEAST_ROOM, *rows.shape[1:]), rows.dtype)
    stored[: len(rows)] = rows
    return stored
