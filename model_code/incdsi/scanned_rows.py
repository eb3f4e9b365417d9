"""A matrix whose rows can be appended, deleted and scored, and sets of row numbers.

The score of a row is its inner product with a vector. Float32 scores have a proven bound on their
rounding error. So only the few rows near a threshold have to be scored again in float64.

Reading all rows takes most of the time of scoring them. A large matrix is therefore read from an
int8 copy, which has a quarter of its size. `ScanPass` holds scores with their error bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Least number of unused rows that an array gets whenever it is allocated.
MIN_SPARE_ROWS = 16

# Number of rows that are converted to float64 at a time. It bounds the memory of the conversion.
CHUNK_ROWS = 8192

# Number of scores in a block. `top_positions` first computes the maximum of each block.
SCORE_BLOCK = 64

# Least number of vectors that are scored by one matrix product. Fewer vectors are scored one by
# one, which is faster: BLAS reads the rows slowly if the other matrix is narrow.
MIN_MATRIX_VECTORS = 4

# Least number of values in a matrix that gets an int8 copy. Smaller matrices are read as fast in
# float32.
MIN_COPIED_NUMBERS = 2**21

# Number of vectors that are scored in float32 before the int8 copy is made. By then, an int8 copy
# would have saved about as much time as making it takes.
SCANS_BEFORE_COPY = 32

# Largest absolute value of an int8 code. The code -128 is not used, so that codes are symmetric.
MAX_CODE = 127

# Largest relative error of a row, |row - its copy| / |row|, with which an int8 copy is used. The
# largest error among 31,500 sentence embeddings is 0.012.
MAX_COPY_ERROR = 0.03

# torch's int8 kernel reads this many values of a row at once. Rows are padded to a multiple of it.
KERNEL_ALIGNMENT = 16

# Largest number of int8 values in one call of the kernel, which counts them in 32 bits.
MAX_KERNEL_NUMBERS = 2**30

# Largest relative error of rounding a number to bfloat16.
BFLOAT16_ERROR = 2.0**-8


class GrowingRows:
    """An array to which rows can be appended in constant time on average.

    The array has room for an eighth more rows than it holds. If the room is used up, the rows are
    copied to a larger array. Unused room takes no memory until rows are written to it.

    >>> rows = GrowingRows(np.zeros((1, 2)))
    >>> rows.append(np.ones((2, 2)))
    >>> rows.delete(np.array([0]))
    >>> rows.view.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, rows: np.ndarray) -> None:
        self._stored = _with_room(rows, len(rows))
        self._count = len(rows)
        self._largest = 0.0
        # Number of first rows that `_largest` has been compared with.
        self._compared = 0

    def __len__(self) -> int:
        return self._count

    @property
    def view(self) -> np.ndarray:
        """The rows (n, ...), without a copy. The view is valid until the rows change."""
        return self._stored[: self._count]

    def append(self, rows: np.ndarray) -> None:
        """Append rows at the end, in a larger array if there is no room left."""
        needed = self._count + len(rows)
        if needed > len(self._stored):
            self._stored = _with_room(self.view, needed)
        self._stored[self._count : needed] = rows
        self._count = needed

    def delete(self, rows: np.ndarray) -> None:
        """Delete rows by their sorted numbers.

        Rows from the end move to the freed positions, so that few rows are copied. The order of the
        rows therefore changes.
        """
        holes, fillers = hole_fillings(rows, self._count)
        self._stored[holes] = self._stored[fillers]
        self._count -= len(rows)
        first_changed = int(holes[0]) if len(holes) else self._count
        self._rows_changed(first_changed)

    def truncate(self, count: int) -> None:
        """Delete all rows after the first `count` rows."""
        self._count = count
        self._rows_changed(count)

    def largest(self) -> float:
        """Return the largest number in the rows, or 0 if no number is positive.

        The result is cached, so that a call reads only the rows that were appended since the last
        call.

        >>> rows = GrowingRows(np.array([1.0, 5.0]))
        >>> rows.append(np.array([7.0]))
        >>> rows.largest()
        7.0
        """
        self._largest = float(self.view[self._compared :].max(initial=self._largest))
        self._compared = self._count
        return self._largest

    def _rows_changed(self, first: int) -> None:
        """Discard what is cached about the rows from `first` on, such as the largest number."""
        if first < self._compared:
            # The largest number may have been in a deleted row, so it is looked for again.
            self._largest = 0.0
            self._compared = 0


def hole_fillings(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows move to which positions after a deletion.

    A deletion leaves holes, positions without a row. Rows from the end fill the holes, so that the
    remaining rows lie side by side again.

    >>> [numbers.tolist() for numbers in hole_fillings(np.array([1, 4]), count=6)]
    [[1], [5]]

    Args:
        rows: Numbers of the deleted rows, sorted.
        count: Number of rows before the deletion.

    Returns:
        Numbers (k,) of the holes, and numbers (k,) of the rows that move to them.
    """
    remaining = count - len(rows)
    holes = rows[rows < remaining]
    fillers = np.setdiff1d(np.arange(remaining, count), rows, assume_unique=True)
    return holes, fillers


def _with_room(rows: np.ndarray, count: int) -> np.ndarray:
    """Return a copy of `rows` in an array with room for more than `count` rows."""
    capacity = count + count // 8 + MIN_SPARE_ROWS
    stored = np.empty((capacity, *rows.shape[1:]), rows.dtype)
    stored[: len(rows)] = rows
    return stored


@dataclass(frozen=True)
class ScanPass:
    """The result of one pass: the scores of all rows of a matrix with one vector.

    Rows that are appended to the matrix after the pass have no score here.

    Attributes:
        vector: The vector (H,) with which all rows were scored.
        scores: The scores (n,) float32 of the n rows that the matrix had.
        uncertainty: Error bound. The score of a row a differs from the exact inner product by at
            most uncertainty x |a|.
    """

    vector: np.ndarray
    scores: np.ndarray
    uncertainty: float


def float32_error(width: int) -> float:
    """Return the error bound of an inner product in float32, in units of |a| |v|.

    The inner product a.v is the sum of `width` products.

    In any order of summation, a sum of `width` products is off by at most width x 2^-24 |a| |v|
    (Higham 2002, section 3.1). Rounding v adds 2^-24. The factor 1.01 covers terms of second order
    for widths up to 100,000.
    """
    return 1.01 * (width + 2) * 2.0**-24


def row_dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the inner product of each row of `a` with the same row of `b`, (n,) float64.

    A product depends only on the two rows, to the last bit. In contrast, the rounding of a matrix
    product depends on the shapes of the matrices.

    Args:
        a: Rows (n, H).
        b: Rows (n, H), or one vector (H,).
    """
    if len(a) <= CHUNK_ROWS:
        # `copy=False` avoids a copy of rows that are float64 already.
        wide_a = a.astype(np.float64, copy=False)
        wide_b = b.astype(np.float64, copy=False)
        return (wide_a * wide_b).sum(axis=1)
    # Chunks bound the memory: all products in float64 at once take twice the memory of `a`.
    products: list[np.ndarray] = []
    for start in range(0, len(a), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        b_rows = b if b.ndim == 1 else b[chunk]
        products.append(row_dots(a[chunk], b_rows))
    return np.concatenate(products)


def rounded_row_dots(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the inner products of all rows with all vectors, as float32 roundings of `row_dots`.

    Matrix products are many times as fast as `row_dots`, but their last bits depend on the shapes
    of the matrices. Both are close to the exact product. So after rounding to float32 they are
    equal, except where the exact product lies next to the middle of two float32 numbers. These few
    products are computed by `row_dots` again.

    Args:
        rows: Rows (n, H), float64.
        vectors: Vectors (q, H), float64.

    Returns:
        Products of shape (q, n), float32.
    """
    # The error bound of a float64 product, in units of |a| |v|; see `float32_error`. It counts
    # twice, because neither of the two products is exact.
    error = 2 * 1.01 * (rows.shape[1] + 2) * 2.0**-53
    vector_lengths = row_norms(vectors)
    products = np.empty((len(vectors), len(rows)), np.float32)
    # Chunks bound the memory of the float64 products.
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        wide = vectors @ chunk.T
        bounds = error * np.outer(vector_lengths, row_norms(chunk))
        rounded = wide.astype(np.float32)
        is_uncertain = (wide - bounds).astype(np.float32) != (wide + bounds).astype(np.float32)
        numbers, positions = np.nonzero(is_uncertain)
        rounded[numbers, positions] = row_dots(chunk[positions], vectors[numbers])
        products[:, start : start + CHUNK_ROWS] = rounded
    return products


def vector_norm(vector: np.ndarray) -> float:
    """Return |v| of a vector (H,)."""
    return float(np.sqrt(vector @ vector))


def row_norms(rows: np.ndarray) -> np.ndarray:
    """Return the norms (n,) of rows (n, H), in float64."""
    return np.sqrt(row_dots(rows, rows))


def top_positions(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the positions (count,) of the highest of `scores` (n,), in no particular order.

    The scores are divided into blocks. The highest scores lie in the `count` blocks with the
    highest maxima. So most scores are read only once, to compute the maximum of their block.

    >>> sorted(top_positions(np.array([1.0, 5.0, 3.0, 4.0], np.float32), 2).tolist())
    [1, 3]
    """
    positions = np.arange(len(scores))
    blocks = len(scores) // SCORE_BLOCK
    if blocks > count:
        scores_in_blocks = blocks * SCORE_BLOCK
        maxima = scores[:scores_in_blocks].reshape(blocks, SCORE_BLOCK).max(axis=1)
        best_blocks = np.argpartition(maxima, blocks - count)[blocks - count :]
        inside = (best_blocks[:, None] * SCORE_BLOCK + np.arange(SCORE_BLOCK)).ravel()
        # The scores after the last full block are in no block. They are candidates as well.
        positions = np.concatenate([inside, positions[scores_in_blocks:]])
    if len(positions) > count:
        first = len(positions) - count
        positions = positions[np.argpartition(scores[positions], first)[first:]]
    return positions


def difference(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the numbers in `rows` that are not in `others`.

    Both arrays must be sorted and without repeats. On arrays of a hundred numbers, `np.setdiff1d`
    takes ten times as long.

    >>> difference(np.array([1, 4, 7]), np.array([0, 4, 5])).tolist()
    [1, 7]
    """
    if not len(others):
        return rows
    # The position of each number among `others`, if it is there. A number above all others has the
    # position len(others), which is moved into the array.
    positions = np.minimum(np.searchsorted(others, rows), len(others) - 1)
    return rows[others[positions] != rows]


def sorted_union(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Join two arrays of row numbers to one sorted array. They must have no number in common.

    >>> sorted_union(np.array([1, 7]), np.array([9, 4])).tolist()
    [1, 4, 7, 9]
    """
    return np.sort(np.concatenate([rows, others]))


class ScannedRows(GrowingRows):
    """Rows (n, H) float32 whose inner products with vectors are computed in passes.

    A pass computes the scores of all rows. Passes over a large matrix read an int8 copy of it.

    >>> ScannedRows(np.eye(2, dtype=np.float32)).scan(np.array([[3.0, 4.0]]))[0].scores.tolist()
    [3.0, 4.0]
    """

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self._copy = Int8Rows(rows.shape[1])
        # Number of scored vectors since the int8 copy last grew; see `SCANS_BEFORE_COPY`.
        self._scans = 0

    def scan(self, vectors: np.ndarray) -> list[ScanPass]:
        """Return one pass over all rows for each of `vectors` (B, H)."""
        if len(vectors) < MIN_MATRIX_VECTORS:
            return [self._scan_one(vector) for vector in vectors]
        scores = vectors.astype(np.float32) @ self.view.T
        error = float32_error(vectors.shape[1])
        passes: list[ScanPass] = []
        for vector, row in zip(vectors, scores, strict=True):
            passes.append(ScanPass(vector, row, error * vector_norm(vector)))
        return passes

    def _scan_one(self, vector: np.ndarray) -> ScanPass:
        """Return a pass over all rows for one vector (H,).

        The rows of a large matrix are copied to int8 after some passes. Then the first rows are
        read from this copy, and rows that were appended later from the matrix.
        """
        rows = self.view
        rows_in_copy = 0
        is_large = rows.size >= MIN_COPIED_NUMBERS
        if is_large:
            self._scans += 1
            if self._scans > SCANS_BEFORE_COPY:
                self._copy.extend(rows)
                self._scans = 0
            is_accurate = self._copy.worst <= MAX_COPY_ERROR
            if is_accurate:
                rows_in_copy = len(self._copy)

        error = float32_error(len(vector))
        scores = np.vecdot(rows[rows_in_copy:], vector.astype(np.float32))
        if rows_in_copy:
            copied_scores, copy_error = self._copy.products(vector)
            scores = np.concatenate([copied_scores, scores])
            error = max(copy_error, error)
        return ScanPass(vector, scores, error * vector_norm(vector))

    def _rows_changed(self, first: int) -> None:
        super()._rows_changed(first)
        self._copy.truncate(first)


class Int8Rows:
    """A compressed copy of rows, which takes one byte per number.

    A row z (width,) is stored as a scale s and integer codes c (width,) from -127 to 127. Then
    z = s c + e with a small error e.

    Attributes:
        width: Number of values in a row.
        worst: Bound on the relative error: |e| <= worst |z| for every row z.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.worst = 0.0
        padded_width = -(-width // KERNEL_ALIGNMENT) * KERNEL_ALIGNMENT
        self._codes = GrowingRows(np.zeros((0, padded_width), np.int8))
        self._scales = GrowingRows(np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self._scales)

    def truncate(self, count: int) -> None:
        """Delete all copies of rows after the first `count` rows."""
        kept = min(count, len(self))
        self._codes.truncate(kept)
        self._scales.truncate(kept)

    def extend(self, rows: np.ndarray) -> None:
        """Copy the rows that are not copied yet.

        Args:
            rows: All rows (n, width). The first `len(self)` of them are copied already.
        """
        padding = self._codes.view.shape[1] - self.width
        for start in range(len(self), len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS].astype(np.float64)
            scales = (np.abs(chunk).max(axis=1) / MAX_CODE).astype(np.float32)
            # The scale of a row of zeros would be 0, which is a divisor. Any other scale gives
            # codes of 0.
            scales[scales == 0] = 1
            codes = np.clip(np.rint(chunk / scales[:, None]), -MAX_CODE, MAX_CODE)

            norms = row_norms(chunk)
            errors = row_norms(chunk - scales[:, None] * codes)
            relative_errors = np.divide(errors, norms, out=np.zeros(len(chunk)), where=norms > 0)
            self.worst = max(self.worst, float(relative_errors.max()))
            self._codes.append(np.pad(codes, ((0, 0), (0, padding))).astype(np.int8))
            self._scales.append(scales)

    def products(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the inner products of all rows with a vector, and their error bound.

        torch's int8 kernel takes the vector in bfloat16. Let x be v/|v|, rounded to bfloat16. Then

            z.v/|v| = s c.x + s c.(v/|v| - x) + e.v/|v|

        The kernel sums the first term in float32 and rounds it to bfloat16. The second term is at
        most (1 + worst) |v/|v| - x| |z|, and the third at most worst |z|.

        Args:
            vector: Vector v (H,).

        Returns:
            The products (n,) float32, and their error bound in units of |z| |v|.
        """
        codes = self._codes.view
        norm = vector_norm(vector)
        if not norm:
            return np.zeros(len(codes), np.float32), 0.0
        # The unit vector v/|v|, padded like the codes, and its bfloat16 copy x, (1, padded width).
        unit = np.pad(vector / norm, (0, codes.shape[1] - self.width))
        # The import is inside because only a solver needs it, which most processes never run.
        import torch

        rounded = torch.from_numpy(unit.astype(np.float32)).bfloat16()[None]
        # The distance |v/|v| - x| between the unit vector and its bfloat16 copy.
        rounding = vector_norm(unit - rounded[0].double().numpy())

        products: list[torch.Tensor] = []
        step = MAX_KERNEL_NUMBERS // codes.shape[1]
        for start in range(0, len(codes), step):
            chunk = torch.from_numpy(codes[start : start + step])
            # The kernel multiplies each product by a factor. The scales have more digits than its
            # bfloat16 factors, so they are applied below.
            ones = torch.ones(len(chunk)).bfloat16()
            products.append(torch._weight_int8pack_mm(rounded, chunk, ones)[0])
        scores = torch.cat(products).float().numpy() * self._scales.view * np.float32(norm)

        # Relative error of the first term: the sum in float32, its rounding to bfloat16, and the
        # multiplication by the scale and the norm.
        arithmetic = (1 + float32_error(self.width)) * (1 + BFLOAT16_ERROR) * (1 + 2.0**-20) - 1
        error = self.worst + (1 + self.worst) * (rounding + (1 + rounding) * arithmetic)
        # The factor 1.01 covers the rounding errors of computing this bound itself.
        return scores, 1.01 * error
