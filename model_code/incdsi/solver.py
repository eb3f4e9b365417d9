"""The exact solver: minimise over a few rows, prove that no other row matters, or take in those that do.

One pass over Z gives the scores of all rows with a reference vector u. For any other v, row j can be violated only if
z_j.u + |z_j||v - u| exceeds its limit, so later rounds test the few rows left by that bound instead of reading Z again.

In a batch each document still sees all that came before it, so its vector is that of one-by-one addition. Common passes
only supply a reference vector for each, and for that a guess at the earlier documents' vectors will do: whatever it is,
`solve` bounds how far the true vector is from it, or reads the collection again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular
from scipy.optimize import nnls

from model_code.incdsi.objective import EXACT, Problem, Task
from model_code.incdsi.rows import Pass, joined, minus

GROWTH = 48  # rows taken in per round; more once there are more members, so that hard cases take few rounds
PASS_PAYS = 1 / 32  # a new pass is cheaper than testing more than this share of the rows one by one
ROUNDING = 2.0**-52


@dataclass(frozen=True)
class Solution:
    """The minimiser `vector` (H) float64.

    members: the rows the solver looked at. passes: full readings of Z for this document alone.
    suspects: every row whose constraint the vector may touch; all others are proven to be met.
    """

    vector: np.ndarray
    members: np.ndarray
    passes: int
    suspects: np.ndarray


@dataclass(frozen=True)
class Start:
    """What a document's turn begins with: `members` (sorted rows), and a pass over Z near its end, or None."""

    members: np.ndarray
    seen: Pass | None = None


def solve(task: Task, start: Start) -> Solution:
    """The minimiser of `task` over all rows.

    No members are needed, likely conflicts save rounds. Rows that were added since the pass are tested one by one.
    """
    members, seen, passes = start.members, start.seen, 0
    vector = None if seen is None else seen.vector
    while True:
        problem = task.problem(members)
        vector, multipliers = minimise(problem, vector)
        suspects = None if seen is None else task.suspects(seen, vector)
        if suspects is None or too_many(suspects, task):
            seen, passes = task.state.queries.scan(vector[None])[0], passes + 1
            suspects = task.suspects(seen, vector)
        others = minus(suspects, members)
        violated = task.violated(others, vector)
        if not len(violated):
            vector = _settled(task, problem, members, vector, multipliers)[0]
            return Solution(vector, members, passes, joined(members, others))
        members = joined(members, violated[: max(GROWTH, len(members))])


def minimise(problem: Problem, near: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser v (H) over the rows of `problem`, and its multipliers (m); near: a vector (H) to begin with.

    Up to as many rows as dimensions by non-negative least squares in the dual, |Rx + R'^-1 b| with R'R = A A' + D;
    with more, by Newton's method in the vector.
    """
    if len(problem.limits) > len(problem.prior):
        return _newton(problem, problem.prior if near is None else near)
    stacked = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    factor = qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][: len(problem.limits)]
    pull = problem.excesses(problem.prior)
    multipliers = nnls(factor, solve_triangular(factor, pull, trans=1, check_finite=False))[0]
    return problem.vector(multipliers), multipliers


def _newton(problem: Problem, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser v (H) and its multipliers (m), by steps to the minimum of the quadratic that L is at v.

    Once that minimum charges the same rows it is the solution; where rounding hides this, the value stops falling.
    """
    value, charged = problem.value(vector), problem.excesses(vector) > 0
    while True:
        goal = _with_charged(problem, charged)
        if np.array_equal(problem.excesses(goal) > 0, charged):
            return goal, problem.multipliers(goal)
        vector, before = _lower(problem, vector, goal), value
        value, charged = problem.value(vector), problem.excesses(vector) > 0
        if value >= before:
            return vector, problem.multipliers(vector)


def _lower(problem: Problem, vector: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The first point of lower value among `goal`, halfway to it, a quarter, ...; `vector` if rounding leaves none."""
    value, share = problem.value(vector), 1.0
    while share > ROUNDING:
        point = vector + share * (goal - vector)
        if problem.value(point) < value:
            return point
        share /= 2
    return vector


def _with_charged(problem: Problem, charged: np.ndarray) -> np.ndarray:
    """The minimiser (H) if just the `charged` (m) hinges A, c, W counted, below 0 as above.

    (lambda2 I + A'WA) v = lambda2 v0 + A'Wc. Unlike v0 - A'x it keeps its digits where lambda2 is nearly 0, and
    multipliers x, which are excesses times weight / lambda2, are large.
    """
    rows, weighted = problem.rows[charged], problem.weights[charged, None] * problem.rows[charged]
    matrix = weighted.T @ rows + problem.lambda2 * np.eye(rows.shape[1])
    target = problem.lambda2 * problem.prior + problem.limits[charged] @ weighted
    _, vector, singular = lapack.dposv(matrix, target)
    return np.linalg.lstsq(matrix, target, rcond=None)[0] if singular else vector


def too_many(suspects: np.ndarray, task: Task) -> bool:
    """Whether reading all of Z again is cheaper than testing `suspects` one by one."""
    return len(suspects) > 64 + PASS_PAYS * len(task.state)


def _settled(
    task: Task, problem: Problem, members: np.ndarray, vector: np.ndarray, multipliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """v (H) and multipliers (m), from the active rows alone, in order: they do not depend on the path to these."""
    used = multipliers > 0
    if np.count_nonzero(used) > len(problem.prior):
        goal = _with_charged(problem, used)
        same = np.array_equal(problem.excesses(goal) > 0, used)
        return (goal, problem.multipliers(goal)) if same else (vector, multipliers)
    active, spread = task.problem(members[used[1:]]), np.zeros_like(multipliers)
    used[0] = True
    spread[used] = _unbounded(active)
    tolerance = max(problem.residual(multipliers), EXACT * task.scale(vector))
    if spread.min() < 0 or problem.residual(spread) > tolerance:
        return vector, multipliers
    return active.vector(spread[used]), spread


def _unbounded(problem: Problem) -> np.ndarray:
    """The multipliers (m) where every hinge is charged: (A A' + D) x = -b by a Cholesky factor, refined once."""
    matrix = problem.rows @ problem.rows.T
    matrix.flat[:: len(matrix) + 1] += problem.diagonal
    pull = problem.excesses(problem.prior)
    factor, failed = lapack.dpotrf(matrix)
    if failed:  # singular to rounding: the shortest of the best solutions
        return np.linalg.lstsq(matrix, pull, rcond=None)[0]
    x = lapack.dpotrs(factor, pull)[0]
    return x + lapack.dpotrs(factor, pull - matrix @ x)[0]
