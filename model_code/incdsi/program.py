"""Quadratic programs with bounds, as both solvers of them see one.

minimise  1/2 |A'x|^2 + 1/2 sum_i D_i x_i^2 + b'x    subject to  0 <= x <= u
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

ZERO, FREE, BOUND = 0, 1, 2
ROUNDING = 2.0**-52


@dataclass(frozen=True)
class BoxProgram:
    """A (m, H), D (m) >= 0, b (m) and u (m) > 0 (infinite: no bound) of the program above, all float64.

    gram: A A' (m, m) where that is smaller than A, else None; lengths: |a| (m). Made by `of`.
    """

    rows: np.ndarray
    diagonal: np.ndarray
    linear: np.ndarray
    upper: np.ndarray
    gram: np.ndarray | None
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, diagonal: np.ndarray, linear: np.ndarray, upper: np.ndarray) -> BoxProgram:
        """The program, and what its solvers need again and again."""
        gram = rows @ rows.T if len(rows) <= rows.shape[1] else None
        squares = np.einsum("ij,ij->i", rows, rows) if gram is None else gram.diagonal()
        return cls(rows, diagonal, linear, upper, gram, np.sqrt(squares))

    def regularised(self, added: np.ndarray, centre: np.ndarray) -> BoxProgram:
        """The same with 1/2 sum_i added_i (x_i - centre_i)^2 on top."""
        return replace(self, diagonal=self.diagonal + added, linear=self.linear - added * centre)

    def squared(self, x: np.ndarray) -> np.ndarray:
        """A A' x (m)."""
        return self.rows @ (x @ self.rows) if self.gram is None else self.gram @ x

    def value(self, x: np.ndarray) -> float:
        """The quadratic itself at `x` (m)."""
        return float(0.5 * (x @ (self.squared(x) + self.diagonal * x)) + self.linear @ x)

    def slopes(self, x: np.ndarray) -> np.ndarray:
        """The gradient (m) at `x` (m): at least 0 where x is 0, at most 0 at its bound, 0 elsewhere if x is optimal."""
        return self.squared(x) + self.diagonal * x + self.linear

    def residual(self, x: np.ndarray) -> float:
        """By how much `x`, within its bounds, misses optimality: the largest slope of a wrong sign.

        >>> program = BoxProgram.of(np.eye(1), np.zeros(1), np.array([-2.0]), np.array([9.0]))
        >>> program.residual(np.array([1.5]))
        0.5
        """
        slopes = self.slopes(x)
        wrong = np.where(x <= 0, -slopes, np.where(x >= self.upper, slopes, np.abs(slopes)))
        return float(max(0.0, wrong.max(initial=0.0)))

    def noise(self, x: np.ndarray) -> float:
        """The size of the rounding errors in `slopes(x)`."""
        return 16 * ROUNDING * (self._longest * float(self.lengths @ np.abs(x)) + self._farthest)

    @cached_property
    def _longest(self) -> float:
        return float(self.lengths.max(initial=0.0))

    @cached_property
    def _farthest(self) -> float:
        return float(np.abs(self.linear).max(initial=0.0))


def solve_free(program: BoxProgram, kinds: np.ndarray) -> np.ndarray:
    """x (m) with the entries of kind ZERO and BOUND fixed there, and the free ones where the slope vanishes."""
    x = np.where(kinds == BOUND, program.upper, 0.0)
    free = np.flatnonzero(kinds == FREE)
    if len(free):
        pull = -(program.linear + program.squared(x))[free]
        by_columns = len(free) > program.rows.shape[1]
        x[free] = (_solve_by_columns if by_columns else _solve_by_rows)(program, free, pull)
    return x


def _solve_by_rows(program: BoxProgram, free: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """Solve (A A' + D) x = pull by a Cholesky factor of as many rows as A, and refine it once."""
    rows = program.rows[free] if program.gram is None else None
    matrix = program.gram[np.ix_(free, free)] if rows is None else rows @ rows.T
    matrix.flat[:: len(matrix) + 1] += program.diagonal[free]
    factor, failed = lapack.dpotrf(matrix)
    if failed:  # singular to rounding: the shortest of the best solutions
        return np.linalg.lstsq(matrix, pull, rcond=None)[0]
    x = lapack.dpotrs(factor, pull)[0]
    return x + lapack.dpotrs(factor, pull - matrix @ x)[0]


def _solve_by_columns(program: BoxProgram, free: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """The same where A has more rows than columns, by Woodbury's identity: the factor has as many as columns."""
    rows, diagonal = program.rows[free], program.diagonal[free]
    scaled = rows / diagonal[:, None]
    matrix = rows.T @ scaled
    matrix.flat[:: len(matrix) + 1] += 1.0
    factor, failed = lapack.dpotrf(matrix)

    def solve(right: np.ndarray) -> np.ndarray:
        projected = scaled.T @ right
        inner = np.linalg.lstsq(matrix, projected, rcond=None)[0] if failed else lapack.dpotrs(factor, projected)[0]
        return right / diagonal - scaled @ inner

    x = solve(pull)
    return x + solve(pull - rows @ (x @ rows) - diagonal * x)
