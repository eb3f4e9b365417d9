"""Rows of a matrix that grows, their scores with a vector, and sets of their numbers.

A score in float32 comes with a proven bound on its rounding, so that few rows are left to be scored
in float64, where each score depends on its own two rows alone. The scores of one vector cost as
long as reading the rows takes, so that many rows are read from a quarter of the bytes, once that
pays: a `Pass` says how coarse it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

LEAST_ROOM = 16
PART = 8192  # rows that are scored in float64 at a time
BLOCK = 64
FEW = 4  # vectors: fewer are scored one by one, as BLAS's narrow products read the rows more slowly
LARGE = 2**21  # numbers: fewer are read as fast in float32
# vectors until rows are copied: by then float32 has cost about as much more as the copy does
PATIENCE = 32
LEVELS, COARSEST = 127, 0.03  # 0.012 is the worst of 31,500 sentence embeddings
ALIGNED, MOST = 16, 2**30  # torch's kernel reads so many numbers at once; it counts them in 32 bits
BFLOAT16 = 2.0**-8  # rounding to it changes a number by less than this share


class GrowingRows:
    """Rows of one shape and type; appending costs O(1) rows on average.

    There is room for an eighth more rows from the start, and again whenever it is used up; unused
    room takes no memory until it is written to.

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
        """Take out `rows` (sorted positions); the last rows take their places, so that few are
        moved.
        """
        holes, last = fillings(rows, self._count)
        self._stored[holes] = self._stored[last]
        self._count -= len(rows)
        self._changed(int(holes[0]) if len(holes) else self._count)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        self._count = count
        self._changed(count)

    def largest(self) -> float:
        """The largest number, 0 if there is none; looks only at rows that are new since the last
        time.

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


def fillings(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of `count` rows, the places that are left where `rows` (sorted) go, and those of the last
    ones that fill them.

    >>> [places.tolist() for places in fillings(np.array([1, 4]), count=6)]
    [[1], [5]]
    """
    remaining = count - len(rows)
    return rows[rows < remaining], np.setdiff1d(
        np.arange(remaining, count), rows, assume_unique=True
    )


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

    In any order of summation the sum of `width` products is off by at most width x 2^-24 |a||v|
    (Higham 2002, section 3.1), rounding v adds 2^-24; 1.01 covers the terms of second order for
    widths up to 100,000.
    """
    return 1.01 * (width + 2) * 2.0**-24


def dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products (n) of the rows of `a` (n, H) with those of `b` (n, H) or with the one vector
    `b` (H), in float64.

    Each depends on its own two rows only, to the last bit; a matrix product's rounding depends on
    its shape.
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

    They lie in the blocks with the `count` highest maxima, so that most scores are read once, for
    their maximum.

    >>> sorted(highest(np.array([1.0, 5.0, 3.0, 4.0], np.float32), 2).tolist())
    [1, 3]
    """
    rows, full = np.arange(len(scores)), len(scores) // BLOCK
    if full > count:
        maxima = scores[: full * BLOCK].reshape(full, BLOCK).max(axis=1)
        blocks = np.argpartition(maxima, full - count)[full - count :]
        inside = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        rows = np.concatenate([inside, rows[full * BLOCK :]])
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

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self._copy, self._scanned = Int8Rows(rows.shape[1]), 0

    def scan(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H)."""
        if len(vectors) >= FEW:
            scores, error = (
                vectors.astype(np.float32) @ self.view.T,
                float32_error(vectors.shape[1]),
            )
            return [
                Pass(vector, row, error * length(vector))
                for vector, row in zip(vectors, scores, strict=True)
            ]
        return [self._scores(vector) for vector in vectors]

    def _scores(self, vector: np.ndarray) -> Pass:
        rows, covered, error = self.view, 0, float32_error(len(vector))
        if rows.size >= LARGE:
            self._scanned += 1
            if self._scanned > PATIENCE:
                self._copy.extend(rows)
                self._scanned = 0
            covered = len(self._copy) if self._copy.worst <= COARSEST else 0
        later = np.vecdot(rows[covered:], vector.astype(np.float32))
        if not covered:
            return Pass(vector, later, error * length(vector))
        copied, coarse = self._copy.products(vector)
        return Pass(vector, np.concatenate([copied, later]), max(coarse, error) * length(vector))

    def _changed(self, row: int) -> None:
        super()._changed(row)
        self._copy.truncate(row)


class Int8Rows:
    """A copy of rows z (n, `width`): z = s c + e with whole numbers c of -127 .. 127 and |e| <=
    `worst` |z|.
    """

    def __init__(self, width: int) -> None:
        self.width, self.worst = width, 0.0
        self._codes = GrowingRows(np.zeros((0, -(-width // ALIGNED) * ALIGNED), np.int8))
        self._scales = GrowingRows(np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self._scales)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows at most."""
        for array in (self._codes, self._scales):
            array.truncate(min(count, len(self)))

    def extend(self, rows: np.ndarray) -> None:
        """Append those of `rows` (n, width) that come after the ones kept already."""
        for start in range(len(self), len(rows), PART):
            part = rows[start : start + PART].astype(np.float64)
            scales = (np.abs(part).max(axis=1) / LEVELS).astype(np.float32)
            scales[scales == 0] = 1
            codes = np.clip(np.rint(part / scales[:, None]), -LEVELS, LEVELS)
            norms, lost = lengths(part), lengths(part - scales[:, None] * codes)
            shares = np.divide(lost, norms, out=np.zeros(len(part)), where=norms > 0)
            self.worst = max(self.worst, float(shares.max()))
            padding = self._codes.view.shape[1] - self.width
            self._codes.append(np.pad(codes, ((0, 0), (0, padding))).astype(np.int8))
            self._scales.append(scales)

    def products(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """The products (n) float32 of all rows with `vector` (H), and their error per |z||v|.

        z.v/|v| = s c.x + s c.(v/|v| - x) + e.v/|v| for the x that v/|v| is rounded to: the last two
        terms are at most (1 + worst) |v/|v| - x| and worst of |z|. The first is summed in float32,
        and rounded to bfloat16.
        """
        size, codes = length(vector), self._codes.view
        if not size:
            return np.zeros(len(codes), np.float32), 0.0
        unit = np.pad(vector / size, (0, codes.shape[1] - self.width))
        rough = torch.from_numpy(unit.astype(np.float32)).bfloat16()[None]
        rounded = length(unit - rough[0].double().numpy())
        step = MOST // codes.shape[1]
        parts = [
            torch.from_numpy(codes[start : start + step]) for start in range(0, len(codes), step)
        ]
        products = [
            torch._weight_int8pack_mm(rough, part, torch.ones(len(part)).bfloat16())[0]
            for part in parts
        ]
        scores = torch.cat(products).float().numpy() * self._scales.view * np.float32(size)
        arithmetic = (1 + float32_error(self.width)) * (1 + BFLOAT16) * (1 + 2.0**-20) - 1
        return scores, 1.01 * (
            self.worst + (1 + self.worst) * (rounded + (1 + rounded) * arithmetic)
        )
