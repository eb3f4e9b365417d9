"""Whether any vector meets the raw constraints q.v >= M and z_j.v <= s_j, with a witness or a proof of the contrary.

The witness is the shortest vector that meets them, which Lawson and Hanson ("Solving Least Squares Problems", 1974,
chapter 23) find by non-negative least squares: with y minimising |A'y|^2 + (c'y + 1)^2 over y >= 0, the shortest v with
A v <= c is -A'y / (c'y + 1), and its length is -c'y / |A'y|. The same y prove it (Farkas): the constraints, weighted by
y and summed, read (A'y).v <= c'y, so that no shorter vector can satisfy them. One that had to be `REACH` times longer
than any of the collection counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from model_code.incdsi.objective import Task
from model_code.incdsi.rows import dots, joined, length, minus
from model_code.incdsi.solver import GROWTH

REACH = 100.0  # times the longest vector of the collection: a longer one would come first for half of all queries
NOISE = 1e-13  # of the weights and their rows: as much may be rounding
MET = 1e-8  # of the scores: a smaller violation is rounding


@dataclass(frozen=True)
class Conflict:
    """A proof that no vector shorter than `radius` meets the constraints.

    ids: documents whose queries conflict with the new one; weights (k): their multipliers, own_weight: that of the new
    document's query. shortfall: -c'y, the score by which the weighted constraints miss each other.
    """

    ids: tuple[str, ...]
    rows: np.ndarray
    weights: np.ndarray
    own_weight: float
    shortfall: float
    radius: float


def examine(task: Task, members: np.ndarray) -> np.ndarray | Conflict:
    """A vector (H) that meets the raw constraints of `task` (margins, prior and weights are ignored), or a proof.

    members: rows (sorted) to begin with, such as those of a solution.
    """
    raw = task.without_margins()
    members = raw.protected(members)
    while True:
        vector = _shortest(raw, members)
        if isinstance(vector, Conflict):
            return vector
        suspects = raw.suspects(task.state.queries.scan(vector[None])[0], vector)
        violated = raw.violated(minus(suspects, members), vector)
        if not len(violated):
            return vector
        members = joined(members, violated[: max(GROWTH, len(members))])


def _shortest(raw: Task, members: np.ndarray) -> np.ndarray | Conflict:
    """The shortest vector (H) that meets the constraints of `members`, or the proof that it would be too long."""
    problem = raw.problem(members)
    reach = REACH * max(raw.state.vector_lengths.largest(), 1e-30)
    longest = max(float(np.linalg.norm(problem.rows, axis=1).max()), 1e-30)
    rows, limits = problem.rows / longest, problem.limits / (longest * reach)  # of v / reach: near 1 is what matters
    weights = nnls(np.vstack([rows.T, limits]), np.append(np.zeros(rows.shape[1]), -1.0))[0]
    combination, shortfall = weights @ rows, -float(weights @ limits)
    if shortfall > length(combination):
        return _conflict(raw, members, problem.rows, problem.limits, weights)
    return combination * reach / (shortfall - 1)


def _conflict(raw: Task, members: np.ndarray, rows: np.ndarray, limits: np.ndarray, weights: np.ndarray) -> Conflict:
    """The proof that `weights` (m) of the constraints `rows` @ v <= `limits` are, recomputed from these."""
    weights = np.where(weights > NOISE * weights.max(), weights, 0.0)
    active, shortfall = weights[1:] > 0, -float(weights @ limits)
    combination = length(weights @ rows) + NOISE * float(weights @ np.linalg.norm(rows, axis=1))
    return Conflict(
        ids=tuple(raw.state.ids[row] for row in members[active]),
        rows=members[active],
        weights=weights[1:][active],
        own_weight=float(weights[0]),
        shortfall=shortfall,
        radius=shortfall / combination,
    )


def broken(task: Task, rows: np.ndarray, vector: np.ndarray) -> int:
    """How many raw constraints `vector` breaks: the document's own, and those of the protected among `rows`."""
    kept, scores = task.protected(rows), task.state.own_scores.view
    kept = task.state.may_exceed(kept, vector, scores[kept])
    tolerance = MET * task.scale(vector)
    lost = dots(task.state.queries.view[kept], vector) > scores[kept] + tolerance
    return int(lost.sum()) + int(float(task.query @ vector) < task.best_rival - tolerance)
