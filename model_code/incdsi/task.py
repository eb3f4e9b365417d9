"""One document's objective over a whole collection, of which a solver sees only a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from model_code.incdsi.passes import Pass
from model_code.incdsi.problem import Problem
from model_code.incdsi.scores import dots
from model_code.incdsi.settings import Hinge, IncDsiSettings
from model_code.incdsi.state import IncDsiState

EXACT = 1e-12  # of the scores: what float64 cannot tell from a constraint that is met
ROUNDED = 1 + 1e-9  # more than float64 rounds a bound by
STORED = 2.0**-23  # of |z||v|: rounding a vector to float32 moves its scores by less


@dataclass(frozen=True)
class Task:
    """The objective of `Problem` for one query (H), all in float64.

    best_rival: M. own_limit: the score q.v that its own hinge asks for, M + gamma1.
    margin: gamma2 in scores: z_j.v may reach s_j less this. own: the row that is being replaced and constrains nothing.
    won_only: rows constrain only where their document wins them.
    """

    state: IncDsiState
    query: np.ndarray
    best_rival: float
    own_limit: float
    margin: float
    own_weight: float
    other_weight: float
    prior: np.ndarray
    lambda2: float
    hinge: Hinge
    own: int | None = None
    won_only: bool = False

    @classmethod
    def of(
        cls,
        state: IncDsiState,
        query: np.ndarray,
        best_rival: float,
        prior: np.ndarray,
        settings: IncDsiSettings,
        own: int | None = None,
    ) -> Task:
        """The task that `settings` ask for; `own` is the row that is being replaced and does not constrain itself."""
        unit = margin_unit(state, settings)
        return cls(
            state=state,
            query=query,
            best_rival=best_rival,
            own_limit=best_rival + settings.gamma1 * unit,
            margin=settings.gamma2 * unit,
            own_weight=settings.lambda1,
            other_weight=1 - settings.lambda1,
            prior=prior,
            lambda2=settings.lambda2,
            hinge=settings.hinge,
            own=own,
            won_only=settings.protect == "won",
        )

    def without_margins(self) -> Task:
        """The same task with gamma1 = gamma2 = 0: the raw constraints."""
        return replace(self, own_limit=self.best_rival, margin=0.0)

    def restricted(self, rows: np.ndarray) -> Problem:
        """The objective with only the document's own hinge (row 0) and those of the protected `rows` (k)."""
        weights = np.full(len(rows) + 1, self.other_weight)
        weights[0] = self.own_weight
        hinges = np.empty((len(rows) + 1, len(self.query)))
        hinges[0] = -self.query
        hinges[1:] = self.state.queries.view[rows]
        limits = np.concatenate([[-self.own_limit], self.limits(rows)])
        return Problem(hinges, limits, weights, self.prior, self.lambda2, self.hinge)

    def protected(self, rows: np.ndarray) -> np.ndarray:
        """Those of `rows` that constrain the vector."""
        if self.won_only and self.state.won is not None:
            rows = rows[self.state.won.view[rows]]
        return rows if self.own is None else rows[rows != self.own]

    def limits(self, rows: np.ndarray) -> np.ndarray:
        """What the scores of v with the queries of protected `rows` may reach, s_j - gamma2: (k)."""
        return self.state.own_scores.view[rows] - self.margin

    def suspects(self, seen: Pass, vector: np.ndarray) -> np.ndarray:
        """All rows (sorted) that `vector` may violate, given the scores of another vector; the rest are proven met.

        z_j.v <= z_j.u + |z_j||v - u| with the seen u, the pass's own error, and that of storing v as float32.
        """
        count, state = len(seen.scores), self.state
        shift = vector - seen.vector
        away = float(np.sqrt(shift @ shift)) + seen.uncertainty + STORED * float(np.sqrt(vector @ vector))
        farthest = state.longest_query * away * ROUNDED + self.margin  # few rows come this far
        near = np.flatnonzero(seen.scores - state.own_scores.view[:count] > -farthest)
        near = near[seen.scores[near] + state.query_lengths.view[near] * away > self.limits(near)]
        return self.protected(np.concatenate([near, np.arange(count, len(state))]))

    def violated(self, rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Those of the protected `rows` whose constraint `vector` breaks, worst first, in float64."""
        rows = self.state.may_exceed(rows, vector, self.limits(rows))
        excess = dots(self.state.queries.view[rows], vector) - self.limits(rows)
        broken = np.flatnonzero(excess > self.tolerance(vector))
        return rows[broken[np.argsort(-excess[broken], kind="stable")]]

    def tolerance(self, vector: np.ndarray) -> float:
        """The excess, in scores, that counts as none."""
        return EXACT * self.scale(vector)

    def scale(self, vector: np.ndarray) -> float:
        """The size of the scores in this task."""
        longest = max(float(np.sqrt(self.query @ self.query)), self.state.longest_query)
        return longest * float(np.sqrt(vector @ vector)) + abs(self.own_limit)


def margin_unit(state: IncDsiState, settings: IncDsiSettings) -> float:
    """What one unit of gamma1 and gamma2 is in scores."""
    return state.score_deviation if settings.margins_in == "standard_deviations" else 1.0
