"""What the solver returns: the vector, and the proof that it is the minimiser."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PROVEN = 1e-9  # of the scores, or of the objective


@dataclass(frozen=True)
class Certificate:
    """Why a vector v is the minimiser over all documents, although the solver looked at a few.

    residual: largest violation of the optimality conditions (KKT) over the rows looked at, in scores.
    outside: an upper bound on the largest excess over the rows not looked at, in scores; at most 0 up to rounding.
    gap: L(v) minus the dual bound, which no vector can beat; in units of L.
    distance: no further than this, in length, from v lies the one minimiser: sqrt(gap / lambda2).
    scale: the size of the scores that `residual` and `outside` are to be seen against.
    """

    residual: float
    outside: float
    gap: float
    distance: float
    scale: float

    @property
    def proven(self) -> bool:
        """Whether no row outside matters, and residual or gap vanish, up to rounding."""
        met = self.residual <= PROVEN * self.scale or self.gap <= PROVEN
        return met and self.outside <= PROVEN * self.scale


@dataclass(frozen=True)
class Solution:
    """The minimiser `vector` (H) float64 and its `objective`.

    members: the rows the solver looked at. active: those of them with a multiplier, and `multipliers` (1 + active) the
    document's own first. passes: full readings of Z for this document alone. rounds: small programs solved.
    suspects: every row whose constraint the vector may touch; all others are proven to be met.
    """

    vector: np.ndarray
    objective: float
    members: np.ndarray
    active: np.ndarray
    multipliers: np.ndarray
    passes: int
    rounds: int
    suspects: np.ndarray
    certificate: Certificate
