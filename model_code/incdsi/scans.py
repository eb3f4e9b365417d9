"""Scores of all rows with one vector after the other; of many rows from a quarter of the bytes, once that pays.

The scores of one vector cost as long as reading the rows takes. Few rows come near a decision, so the reading may be
coarse if its `Pass` says how coarse it is: whoever uses it tests what is left open in float64.
"""

from __future__ import annotations

import numpy as np

from model_code.incdsi.rows import PART, GrowingRows, Pass, float32_error, length, lengths

FEW = 4  # vectors: fewer are scored one by one, as BLAS's narrow products read the rows more slowly
LARGE = 2**21  # numbers: fewer are read as fast in float32
PATIENCE = 32  # vectors until rows are copied: by then float32 has cost about as much more as the copy does
LEVELS, COARSEST = 127, 0.03  # 0.012 is the worst of 31,500 sentence embeddings
ALIGNED, MOST = 16, 2**30  # torch's kernel reads so many numbers at once; it counts them in 32 bits
BFLOAT16 = 2.0**-8  # rounding to it changes a number by less than this share


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
            scores, error = vectors.astype(np.float32) @ self.view.T, float32_error(vectors.shape[1])
            return [Pass(vector, row, error * length(vector)) for vector, row in zip(vectors, scores, strict=True)]
        return [self._scores(vector) for vector in vectors]

    def _scores(self, vector: np.ndarray) -> Pass:
        rows, known, error = self.view, 0, float32_error(len(vector))
        if rows.size >= LARGE:
            self._scanned += 1
            if self._scanned > PATIENCE:
                self._copy.extend(rows)
                self._scanned = 0
            known = len(self._copy) if self._copy.worst <= COARSEST else 0
        later = np.vecdot(rows[known:], vector.astype(np.float32))
        if not known:
            return Pass(vector, later, error * length(vector))
        copied, coarse = self._copy.products(vector)
        return Pass(vector, np.concatenate([copied, later]), max(coarse, error) * length(vector))

    def _changed(self, row: int) -> None:
        super()._changed(row)
        self._copy.truncate(row)


class Int8Rows:
    """A copy of rows z (n, `width`): z = s c + e with whole numbers c of -127 .. 127 and |e| <= `worst` |z|."""

    def __init__(self, width: int) -> None:
        self.width, self.worst = width, 0.0
        self._codes = GrowingRows(np.zeros((0, -(-width // ALIGNED) * ALIGNED), np.int8))
        self._scales = GrowingRows(np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self._scales)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows at most."""
        for kept in (self._codes, self._scales):
            kept.truncate(min(count, len(self)))

    def extend(self, rows: np.ndarray) -> None:
        """Append those of `rows` (n, width) that come after the ones kept already."""
        for start in range(len(self), len(rows), PART):
            part = rows[start : start + PART].astype(np.float64)
            scales = (np.abs(part).max(axis=1) / LEVELS).astype(np.float32)
            scales[scales == 0] = 1
            codes = np.clip(np.rint(part / scales[:, None]), -LEVELS, LEVELS)
            whole, lost = lengths(part), lengths(part - scales[:, None] * codes)
            shares = np.divide(lost, whole, out=np.zeros(len(part)), where=whole > 0)
            self.worst = max(self.worst, float(shares.max()))
            padding = self._codes.view.shape[1] - self.width
            self._codes.append(np.pad(codes, ((0, 0), (0, padding))).astype(np.int8))
            self._scales.append(scales)

    def products(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """The products (n) float32 of all rows with `vector` (H), and their error per |z||v|.

        z.v/|v| = s c.x + s c.(v/|v| - x) + e.v/|v| for the x that v/|v| is rounded to: the last two terms are at most
        (1 + worst) |v/|v| - x| and worst of |z|. The first is summed in float32, and rounded to bfloat16.
        """
        import torch

        size, codes = length(vector), self._codes.view
        if not size:
            return np.zeros(len(codes), np.float32), 0.0
        unit = np.pad(vector / size, (0, codes.shape[1] - self.width))
        rough = torch.from_numpy(unit.astype(np.float32)).bfloat16()[None]
        rounded = length(unit - rough[0].double().numpy())
        step = MOST // codes.shape[1]
        parts = [torch.from_numpy(codes[start : start + step]) for start in range(0, len(codes), step)]
        products = [torch._weight_int8pack_mm(rough, part, torch.ones(len(part)).bfloat16())[0] for part in parts]
        found = torch.cat(products).float().numpy() * self._scales.view * np.float32(size)
        arithmetic = (1 + float32_error(self.width)) * (1 + BFLOAT16) * (1 + 2.0**-20) - 1
        return found, 1.01 * (self.worst + (1 + self.worst) * (rounded + (1 + rounded) * arithmetic))
