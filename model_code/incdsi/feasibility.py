"""Whether any vector meets the raw constraints q.v >= M and z_j.v <= s_j, with a witness or a proof of the contrary.

The smallest sum of violations is found by the same exact solver: plain hinges, no margins, and a lambda2 so small that
it only keeps the vector finite. If the sum is 0, the minimiser is the witness. Otherwise the multipliers y >= 0 are the
proof (Farkas): the constraints a_i.v <= c_i, weighted by y and summed, read (A'y).v <= c'y, and since A'y is nearly 0
and c'y is negative, no vector shorter than radius = -c'y / |A'y| can satisfy them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from model_code.incdsi.passes import Scan
from model_code.incdsi.scores import dots
from model_code.incdsi.solution import Solution
from model_code.incdsi.task import Task
from model_code.incdsi.working_set import solve

REACH = 100.0  # times the longest vector of the collection: a longer one would come first for half of all queries
FIRST_LAMBDA2 = 1e-5
ATTEMPTS = 3
MET = 1e-8  # of the scores: a smaller sum of violations is rounding


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


@dataclass(frozen=True)
class Verdict:
    """feasible: True with a `witness` (H), False with a `conflict`, None where float64 cannot tell."""

    feasible: bool | None
    witness: np.ndarray | None = None
    conflict: Conflict | None = None


def examine(task: Task, scan: Scan, members: np.ndarray) -> Verdict:
    """Decide whether the raw constraints of `task` (its margins, prior and weights are ignored) can be met.

    members: rows (sorted) to begin with, such as those of a solution.
    """
    longest = max(task.state.longest_vector, 1e-30)
    queries = max(task.state.longest_query, float(np.linalg.norm(task.query)), 1e-30)
    raw = replace(task.without_margins(), prior=np.zeros_like(task.prior), hinge="plain")
    for attempt in range(ATTEMPTS):
        lambda2 = FIRST_LAMBDA2 * queries / longest / 100.0**attempt
        stated = replace(raw, own_weight=1.0, other_weight=1.0, lambda2=lambda2)
        found = solve(stated, scan, members)
        violations = np.maximum(0.0, stated.restricted(found.members).excesses(found.vector)).sum()
        if violations <= MET * queries * longest:
            return Verdict(feasible=True, witness=found.vector)
        conflict = prove_conflict(stated, found)
        if conflict is not None and conflict.radius >= REACH * longest:
            return Verdict(feasible=False, conflict=conflict)
        members = found.members
    return Verdict(feasible=None)


def prove_conflict(task: Task, found: Solution) -> Conflict | None:
    """The conflict that the multipliers of `found` prove, recomputed from the constraints; None if they prove none."""
    problem = task.restricted(found.active)
    weights = 2 * task.lambda2 * found.multipliers
    combination, shortfall = weights @ problem.rows, -float(weights @ problem.limits)
    if shortfall <= 0:
        return None
    length = float(np.sqrt(combination @ combination))
    return Conflict(
        ids=tuple(task.state.ids[row] for row in found.active),
        rows=found.active,
        weights=weights[1:],
        own_weight=float(weights[0]),
        shortfall=shortfall,
        radius=shortfall / length if length else float("inf"),
    )


def broken(task: Task, rows: np.ndarray, vector: np.ndarray) -> int:
    """How many raw constraints `vector` breaks: the document's own, and those of the protected among `rows`."""
    kept, scores = task.protected(rows), task.state.own_scores.view
    kept = task.state.may_exceed(kept, vector, scores[kept])
    tolerance = MET * task.scale(vector)
    lost = dots(task.state.queries.view[kept], vector) > scores[kept] + tolerance
    return int(lost.sum()) + int(float(task.query @ vector) < task.best_rival - tolerance)
