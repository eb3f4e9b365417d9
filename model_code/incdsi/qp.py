"""Exact minimisers of tiny quadratic programs with bounds, the inner problem of every added document.

Block principal pivoting: guess which entries are 0, at their bound or free, solve for the free ones, exchange all that
have the wrong sign. It takes 1 to 15 rounds where it works, and it nearly always does; where it goes in circles,
`descend` finishes from there, one entry at a time.
"""

from __future__ import annotations

import numpy as np

from model_code.incdsi.descent import descend
from model_code.incdsi.program import BOUND, FREE, ZERO, BoxProgram, solve_free

PATIENCE = 5  # block exchanges in a row that may leave as many wrong signs as before
RIDGE = 1e-10  # of the largest |a|^2: what a singular matrix is regularised with, and then corrected for
MAX_CORRECTIONS = 60


def minimise(program: BoxProgram, kinds: np.ndarray | None = None) -> np.ndarray:
    """The minimiser x (m). Where A and D leave it open, one of them: A'x is unique all the same.

    kinds: a first guess of which entries are ZERO, FREE or at their BOUND, (m).

    A singular program is solved as a sequence of regularised ones, each centred on the last one's solution.

    >>> minimise(BoxProgram.of(np.eye(2), np.zeros(2), np.array([-2.0, 1.0]), np.array([1.5, 9.0]))).tolist()
    [1.5, 0.0]
    """
    ridge = RIDGE * (float(program.lengths.max(initial=0.0)) ** 2 or 1.0)
    added = np.maximum(0.0, ridge - program.diagonal)
    x, kinds = pivot(program.regularised(added, np.zeros(len(added))), kinds)
    if not added.any():
        return x
    for _ in range(MAX_CORRECTIONS):
        if program.residual(x) <= program.noise(x):
            break
        x, kinds = pivot(program.regularised(added, x), kinds)
    return x


def pivot(program: BoxProgram, kinds: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser (m) where D > 0, and the kind (ZERO, FREE or BOUND) of each entry; `kinds` is a first guess."""
    kinds = np.where(program.linear < 0, FREE, ZERO) if kinds is None else kinds.copy()
    fewest, patience = len(kinds) + 1, PATIENCE
    while True:
        x = solve_free(program, kinds)
        wanted = _wanted_kinds(program, x, kinds)
        wrong = int(np.count_nonzero(wanted != kinds))
        if not wrong:
            return np.clip(x, 0.0, program.upper), kinds
        patience = PATIENCE if wrong < fewest else patience - 1
        if not patience:
            return descend(program, np.clip(x, 0.0, program.upper))
        fewest, kinds = min(wrong, fewest), wanted


def _wanted_kinds(program: BoxProgram, x: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    slopes, noise = program.slopes(x), program.noise(np.abs(x))
    wanted = kinds.copy()
    free = kinds == FREE
    wanted[free & (x < 0)] = ZERO
    wanted[free & (x > program.upper)] = BOUND
    wanted[(kinds == ZERO) & (slopes < -noise)] = FREE
    wanted[(kinds == BOUND) & (slopes > noise)] = FREE
    return wanted
