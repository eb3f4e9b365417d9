"""Rows of a matrix that grows, their scores with a vector, and sets of their numbers.

A score in float32 comes with a proven bound on its rounding, so that few rows are left to be scored in float64, where
each score depends on its own two rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_ROOM = 16
PART = 8192  # rows that are scored in float64 at a time
BLOCK = 64
FEW = 4  # vectors: fewer are scored one by one, as BLAS's narrow products read the rows more slowly


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
        self._stored, self._count = _with_room(rows, len(rows)), len(rows)
        self._largest, self._compared = 0.0, 0

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
        self._count = needed

    def delete(self, rows: np.ndarray) -> None:
        """Take out `rows` (sorted positions); the last rows take their places, so that few are moved."""
        holes, last = moved(rows, self._count)
        self._stored[holes] = self._stored[last]
        self._count -= len(rows)
        self._changed(int(holes[0]) if len(holes) else self._count)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        self._count = count
        self._changed(count)

    def largest(self) -> float:
        """The largest number, 0 if there is none; looks only at rows that are new since the last time.

        >>> rows = GrowingRows(np.array([1.0, 5.0]))
        >>> rows.append(np.array([7.0]))
        >>> rows.largest()
        7.0
        """
        self._largest = float(self.view[self._compared :].max(initial=self._largest))
        self._compared = self._count
        return self._largest

    def _changed(self, row: int) -> None:
        if row < self._compared:  # the largest may be gone
            self._largest, self._compared = 0.0, 0


def moved(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of `count` rows, the places that are left where `rows` (sorted) go, and those of the last ones that fill them.

    >>> [places.tolist() for places in moved(np.array([1, 4]), count=6)]
    [[1], [5]]
    """
    left = count - len(rows)
    return rows[rows < left], np.setdiff1d(np.arange(left, count), rows, assume_unique=True)


def _with_room(rows: np.ndarray, count: int) -> np.ndarray:
    """A copy of `rows` in an array for `count` and more."""
    stored = np.empty((count + count // 8 + LEAST_ROOM, *rows.shape[1:]), rows.dtype)
    stored[: len(rows)] = rows
    return stored


@dataclass(frozen=True)
class Pass:
    """Scores (n) of the first n rows with `vector` (H), in float32.

    uncertainty: a row a scores within `uncertainty` x |a| of what is here.
    """

    vector: np.ndarray
    scores: np.ndarray
    uncertainty: float


def float32_error(width: int) -> float:
    """Error of a float32 score a.v of `width` numbers against float64, per |a||v|.

    In any order of summation the sum of `width` products is off by at most width x 2^-24 |a||v| (Higham 2002,
    section 3.1), rounding v adds 2^-24; 1.01 covers the terms of second order for widths up to 100,000.
    """
    return 1.01 * (width + 2) * 2.0**-24


def dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products (n) of the rows of `a` (n, H) with those of `b` (n, H) or with the one vector `b` (H), in float64.

    Each depends on its own two rows only, to the last bit; a matrix product's rounding depends on its shape.
    """
    if len(a) > PART:  # or the products would take twice the memory of `a`
        parts = [slice(start, start + PART) for start in range(0, len(a), PART)]
        return np.concatenate([dots(a[part], b if b.ndim == 1 else b[part]) for part in parts])
    return (a.astype(np.float64) * b.astype(np.float64)).sum(axis=1)


def length(vector: np.ndarray) -> float:
    """|v| of one vector (H)."""
    return float(np.sqrt(vector @ vector))


def lengths(rows: np.ndarray) -> np.ndarray:
    """The lengths (n) of `rows` (n, H), in float64."""
    return np.sqrt(dots(rows, rows))


def highest(scores: np.ndarray, count: int) -> np.ndarray:
    """The positions of the `count` highest of `scores` (n), in no order.

    They lie in the blocks with the `count` highest maxima, so that most scores are read once, for their maximum.

    >>> sorted(highest(np.array([1.0, 5.0, 3.0, 4.0], np.float32), 2).tolist())
    [1, 3]
    """
    rows, whole = np.arange(len(scores)), len(scores) // BLOCK
    if whole > count:
        maxima = scores[: whole * BLOCK].reshape(whole, BLOCK).max(axis=1)
        blocks = np.argpartition(maxima, whole - count)[whole - count :]
        inside = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        rows = np.concatenate([inside, rows[whole * BLOCK :]])
    if len(rows) > count:
        rows = rows[np.argpartition(scores[rows], len(rows) - count)[len(rows) - count :]]
    return rows


def minus(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Those of `rows` (n) that are not in `others` (k), both sorted without repeats.

    numpy's own routines for sets take ten times as long on arrays of a hundred numbers.

    >>> minus(np.array([1, 4, 7]), np.array([0, 4, 5])).tolist()
    [1, 7]
    """
    if not len(others):
        return rows
    return rows[others[np.minimum(np.searchsorted(others, rows), len(others) - 1)] != rows]


def joined(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """`rows` and `others`, which share none, as one sorted array.

    >>> joined(np.array([1, 7]), np.array([9, 4])).tolist()
    [1, 4, 7, 9]
    """
    return np.sort(np.concatenate([rows, others]))


class ScannedRows(GrowingRows):
    """Rows (n, H) float32 that are scored with vectors, all of them each time.

    >>> ScannedRows(np.eye(2, dtype=np.float32)).scan(np.array([[3.0, 4.0]]))[0].scores.tolist()
    [3.0, 4.0]
    """

    def scan(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H)."""
        rounded, error = vectors.astype(np.float32), float32_error(vectors.shape[1])
        scores = rounded @ self.view.T if len(vectors) >= FEW else [np.vecdot(self.view, vector) for vector in rounded]
        return [Pass(vector, row, error * length(vector)) for vector, row in zip(vectors, scores, strict=True)]
