"""One pass over a large matrix in a quarter of the bytes: rows of int8, and a proven bound on what that loses.

The scores of one vector cost as long as reading the matrix from memory takes. Few rows come near a decision, so the
pass may be coarse if its `Pass` says how coarse it is: whoever uses it tests what is left open in float64.
"""

from __future__ import annotations

import numpy as np

from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.int8_rows import Int8Rows
from model_code.incdsi.passes import Pass, float32_error
from model_code.incdsi.scans import HostScan

LARGE = 2**21  # numbers: in smaller matrices float32 is as fast, or faster in the processor's cache
PATIENCE = 64  # passes until rows are copied: by then float32 has cost about as much more as the copy does
FEW = 4  # vectors up to which passes one by one beat one matrix product
TOO_COARSE = 1 / 64  # share of rows that int8 keeps badly, above which the copy does not help


class CompressedScan:
    """float32 as in `HostScan`; for a few vectors at once by an int8 copy of the rows, as soon as that pays.

    Rows that are new or changed are read in float32 until they have been often enough. The copy adds a quarter of the
    matrix's memory.
    """

    def __init__(self, rows: GrowingRows) -> None:
        self.rows, self._plain, self._changes = rows, HostScan(rows), rows.watch()
        self._copy, self._passes = Int8Rows(rows.view.shape[1]), 0

    def passes(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H)."""
        if self.rows.view.size < LARGE or len(vectors) > FEW:
            return self._plain.passes(vectors)
        self._follow(len(vectors))
        if len(self._copy.coarse) >= TOO_COARSE * len(self._copy):  # or none is copied
            return self._plain.passes(vectors)
        return [self._one(vector) for vector in vectors]

    def _follow(self, asked: int) -> None:
        self._copy.truncate(min(self._changes.first, len(self.rows)))
        self._changes.first = len(self.rows)
        self._passes += asked
        if self._passes > PATIENCE:
            self._copy.extend(self.rows.view)
            self._passes = 0

    def _one(self, vector: np.ndarray) -> Pass:
        rows, rough, coarse = self.rows.view, vector.astype(np.float32), self._copy.coarse
        copied, error = self._copy.products(vector)
        copied[coarse] = rows[coarse] @ rough
        scores = np.concatenate([copied, rows[len(copied) :] @ rough])
        return Pass(vector, scores, max(error, float32_error(len(vector))))
