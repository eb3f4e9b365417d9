"""Rows rounded to int8 with a scale each, how far that is from them, and their product with a vector.

z = s c + e,  c integers of -127 .. 127,  s = max |z_i| / 127 rounded up to bfloat16,  |e| <= rho |z|
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_code.incdsi.passes import BFLOAT16, float32_error

LEVELS = 127
COARSEST = 0.03  # rho of a row that is worth keeping here: 0.012 is the worst of 31,500 sentence embeddings
ALIGNED = 16  # torch's kernel reads so many numbers at once, and does not look where the row ends
MOST = 2**30  # numbers in one call: it counts them in 32 bits
BLOCK = 512


class Int8Rows:
    """A growing copy of float32 rows of `width` numbers: one byte for each, and two more for each row.

    worst: rho, the largest |e| / |z| among the rows that it keeps well.
    coarse: positions (sorted) of the rows that it does not: their products are meaningless.
    """

    def __init__(self, width: int) -> None:
        self.width, self.worst, self.coarse = width, 0.0, np.zeros(0, np.int64)
        self._codes: Any = None
        self._scales: Any = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows at most."""
        self._count = min(count, self._count)
        self.coarse = self.coarse[self.coarse < self._count]

    def extend(self, rows: np.ndarray) -> None:
        """Append those of `rows` (n, width) that come after the ones kept already."""
        self._make_room(len(rows))
        for start in range(self._count, len(rows), BLOCK):
            self._append(rows[start : start + BLOCK])

    def products(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """The products (n) float32 of all rows with `vector` (H) float64, and their error per |row| |vector|."""
        import torch

        length = float(np.sqrt(vector @ vector))
        if not length:
            return np.zeros(self._count, np.float32), 0.0
        unit = np.zeros((1, self._codes.shape[1]))
        unit[0, : self.width] = vector / length
        rough = torch.from_numpy(unit.astype(np.float32)).bfloat16()
        block = MOST // self._codes.shape[1]
        found = np.empty(self._count, np.float32)
        for start in range(0, self._count, block):
            part = slice(start, min(start + block, self._count))
            product = torch._weight_int8pack_mm(rough, self._codes[part], self._scales[part])
            found[part] = product[0].float().numpy()
        found *= np.float32(length)
        rounded = float(np.linalg.norm(unit - rough.double().numpy()))
        return found, product_error(self.worst, rounded, self.width)

    def _append(self, rows: np.ndarray) -> None:
        import torch

        part = slice(self._count, self._count + len(rows))
        largest = np.abs(rows).max(axis=1, initial=0.0)
        self._scales[part] = torch.from_numpy(largest * np.float32((1 + 2 * BFLOAT16) / LEVELS))
        scales = self._scales[part].float().numpy()
        scaled = rows / np.where(scales > 0, scales, 1)[:, None]  # up to 127 each: nothing below can overflow
        codes = np.clip(np.rint(scaled), -LEVELS, LEVELS)
        self._codes[part, : self.width] = torch.from_numpy(codes.astype(np.int8))
        share = _length_shares(scaled - codes, scaled)
        well = (share <= COARSEST) & ((scales > 0) | (largest == 0))
        self.coarse = np.concatenate([self.coarse, self._count + np.flatnonzero(~well)])
        self.worst = max(self.worst, float(share[well].max(initial=0.0)))
        self._count += len(rows)

    def _make_room(self, count: int) -> None:
        import torch

        if self._codes is None or count > len(self._codes):
            old, room = (self._codes, self._scales), count + count // 8
            padded = -(-self.width // ALIGNED) * ALIGNED
            self._codes = torch.zeros((room, padded), dtype=torch.int8)
            self._scales = torch.zeros(room, dtype=torch.bfloat16)
            if self._count:
                self._codes[: self._count], self._scales[: self._count] = (kept[: self._count] for kept in old)


def _length_shares(parts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """At least |part| / |row| (n) for float32 rows (n, width), whatever is rounded on the way; 0 for the row 0."""
    squares = [np.einsum("ij,ij->i", a, a) for a in (parts, rows)]
    share = np.sqrt(np.divide(*squares, out=np.zeros(len(rows), np.float32), where=squares[1] > 0))
    return share.astype(np.float64) * (1 + 2 * float32_error(rows.shape[1])) + 2.0**-22


def product_error(worst: float, rounded: float, width: int) -> float:
    """The largest |z.v - what was computed| / |z||v| for rows with rho = `worst`, v / |v| being off by `rounded`.

    z.v/|v| = s c.x + s c.(v/|v| - x) + e.v/|v| with the rounded x: the last two terms are at most (1 + rho) `rounded`
    and rho of |z|. The first is summed in float32, its products s c_i exact (8 and 7 digits), and rounded to bfloat16.
    """
    arithmetic = (1 + float32_error(width)) * (1 + BFLOAT16) * (1 + 2.0**-22) - 1
    return 1.01 * (worst + (1 + worst) * (rounded + (1 + rounded) * arithmetic))
