"""The objective of one added document in float64: the exact statement that solvers are checked against.

    L(v) = lambda1 h(M + gamma1 - q.v) + (1 - lambda1) sum_j h(z_j.v - s_j + gamma2) + lambda2 |v - v0|^2

with h(x) = max(0, x)^2 (IncDSI, equations of section 3) or max(0, x), q the document's mean query, M the best score of
q among the documents there are, z_j the representative query of document j, s_j = z_j.v_j, and v0 the prior (0 in the
paper). All hinges have one form, h(a.v - c): the document's own has a = -q and c = -(M + gamma1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from model_code.incdsi.program import FREE, ZERO, BoxProgram
from model_code.incdsi.qp import minimise
from model_code.incdsi.settings import Hinge, IncDsiSettings

POLISHES = 8  # Newton steps: the guess of what is charged is nearly right, and mostly one is enough


@dataclass(frozen=True)
class Problem:
    """Hinges h(rows @ v - limits) with `weights`, and lambda2 |v - prior|^2; rows (m, H), limits and weights (m)."""

    rows: np.ndarray
    limits: np.ndarray
    weights: np.ndarray
    prior: np.ndarray
    lambda2: float
    hinge: Hinge = "squared"

    @classmethod
    def of(
        cls,
        query: np.ndarray,
        best_rival: float,
        queries: np.ndarray,
        own_scores: np.ndarray,
        prior: np.ndarray,
        settings: IncDsiSettings,
        unit: float = 1.0,
    ) -> Problem:
        """The objective for q = `query` (H), M = `best_rival`, Z = `queries` (n, H), s = `own_scores` (n).

        unit: what one unit of gamma1 and gamma2 is in scores. Row 0 is the document's own hinge, row 1 + j that of z_j.
        """
        rows = np.vstack([-query[None], queries]).astype(np.float64)
        limits = np.append(-(best_rival + settings.gamma1 * unit), own_scores - settings.gamma2 * unit)
        weights = np.full(len(rows), 1 - settings.lambda1)
        weights[0] = settings.lambda1
        return cls(rows, limits, weights, np.asarray(prior, np.float64), settings.lambda2, settings.hinge)

    def excesses(self, vector: np.ndarray) -> np.ndarray:
        """rows @ v - limits (m) in scores: what is above 0 is charged."""
        return self.rows @ vector - self.limits

    def value(self, vector: np.ndarray) -> float:
        """L(v).

        >>> problem = Problem(np.eye(2), np.zeros(2), np.ones(2), np.zeros(2), lambda2=.5)
        >>> problem.value(np.array([2.0, -1.0]))
        6.5
        """
        charged = np.maximum(0.0, self.excesses(vector))
        hinges = charged**2 if self.hinge == "squared" else charged
        shift = vector - self.prior
        return float(self.weights @ hinges + self.lambda2 * (shift @ shift))

    def gradient(self, vector: np.ndarray) -> np.ndarray:
        """The gradient (H) of L at v; with the plain hinge, that of one side where a hinge has its kink."""
        charged = np.maximum(0.0, self.excesses(vector))
        steps = 2 * charged if self.hinge == "squared" else (charged > 0).astype(np.float64)
        return (self.weights * steps) @ self.rows + 2 * self.lambda2 * (vector - self.prior)

    def worst(self, vector: np.ndarray) -> float:
        """The largest excess of v over all rows, -inf without rows."""
        return float(self.excesses(vector).max(initial=-np.inf))

    @cached_property
    def program(self) -> BoxProgram:
        """The dual in x, where v = prior - rows' x: bounded by nothing (squared) or by weight / (2 lambda2) (plain)."""
        squared = self.hinge == "squared"
        diagonal = self.lambda2 / self.weights if squared else np.zeros(len(self.rows))
        upper = np.full(len(self.rows), np.inf) if squared else self.weights / (2 * self.lambda2)
        return BoxProgram.of(self.rows, diagonal, self.limits - self.rows @ self.prior, upper)

    def minimise(self, active: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The minimiser v (H), unique since lambda2 > 0, and the multipliers x (m) that prove it.

        active: a guess (m) which hinges are charged, which saves time where it is nearly right.
        """
        multipliers = minimise(self.program, None if active is None else np.where(active, FREE, ZERO))
        return self.vector(multipliers), multipliers

    def polished(self, multipliers: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The minimiser v (H) and its multipliers (m), from nearly right ones, with squared hinges; None if not found.

        Of the charged hinges A, c, W, more than H, v solves (lambda2 I + A'WA) v = lambda2 v0 + A'Wc. Multipliers are
        excesses times weight / lambda2: near lambda2 = 0 they are so large that v0 - A'x keeps few digits of v.
        """
        charged = multipliers > 0
        for _ in range(POLISHES):
            rows, weighted = self.rows[charged], self.weights[charged, None] * self.rows[charged]
            matrix = weighted.T @ rows + self.lambda2 * np.eye(rows.shape[1])
            _, vector, singular = lapack.dposv(matrix, self.lambda2 * self.prior + self.limits[charged] @ weighted)
            if singular:
                return None
            excesses = self.excesses(vector)
            if np.array_equal(excesses > 0, charged):
                return vector, np.maximum(0.0, excesses) * self.weights / self.lambda2
            charged = excesses > 0
        return None

    def vector(self, multipliers: np.ndarray) -> np.ndarray:
        """v = prior - rows' x."""
        return self.prior - multipliers @ self.rows

    def lower_bound(self, multipliers: np.ndarray) -> float:
        """The dual value of `multipliers` (m), within their bounds: no v reaches a smaller L.

        >>> problem = Problem(np.eye(1), np.array([-1.0]), np.ones(1), np.zeros(1), lambda2=1.0)
        >>> problem.lower_bound(problem.minimise()[1]), problem.value(problem.minimise()[0])
        (0.5, 0.5)
        """
        program, shift = self.program, multipliers @ self.rows
        quadratic = shift @ shift + multipliers @ (program.diagonal * multipliers)
        return float(-self.lambda2 * (quadratic + 2 * program.linear @ multipliers))
