"""Scores of all rows of a matrix with one vector, and a proven bound on how far rounding takes them from the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

FLOAT32, BFLOAT16 = 2.0**-24, 2.0**-8
"""The largest relative error of rounding one number to the type, which keeps 24 or 8 binary digits."""


@dataclass(frozen=True)
class Pass:
    """Scores (n) of the first n rows with `vector` (H): each within `error` x |row| x |vector| of the true score."""

    vector: np.ndarray
    scores: np.ndarray
    error: float

    @property
    def uncertainty(self) -> float:
        """The error per unit of a row's length: a row a is within `uncertainty` x |a| of its score."""
        return self.error * float(np.sqrt(self.vector @ self.vector))


class Scan(Protocol):
    """Whatever multiplies the rows of one matrix with vectors."""

    def passes(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H), all from one reading of the matrix."""
        ...


def float32_error(width: int) -> float:
    """Relative error of a float32 score of `width` numbers against float64: rounded vector, products and sums.

    In any order of summation the sum of `width` products is off by at most width x 2^-24 |a||v| (Higham 2002,
    section 3.1), rounding v adds 2^-24; 1.01 covers the terms of second order for widths up to 100,000.
    """
    return 1.01 * (width + 2) * FLOAT32


def bfloat16_error(width: int) -> float:
    """The same where both factors and the score are rounded to bfloat16 and sums are float32: about 2^-6.41."""
    return (1 + BFLOAT16) ** 3 * (1 + float32_error(width)) - 1
