"""The objective of one added document, and its exact solver: prove that no row outside a few
matters, or take those in.

    L(v) = lambda1 h(M + gamma1 - q.v) + (1 - lambda1) sum_j h(z_j.v - s_j + gamma2) + lambda2 |v - v0|^2

with h(x) = max(0, x)^2 (IncDSI, equations of section 3), q the document's mean query, M the best
score of q among the documents there are, z_j the representative query of document j, s_j = z_j.v_j,
and v0 the prior (0 in the paper). All hinges have one form, h(a.v - c): the document's own has a =
-q and c = -(M + gamma1).

One pass over Z gives the scores of all rows with a reference vector u. For any other v, row j can
be violated only if z_j.u + |z_j||v - u| exceeds its limit, so later rounds test the few rows left
by that bound instead of reading Z again.

In a batch each document still sees all that came before it, so its vector is that of one-by-one
addition. Common passes only supply a reference vector for each, and for that a guess at the earlier
documents' vectors will do: whatever it is, `solve` bounds how far the true vector is from it, or
reads the collection again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular
from scipy.optimize import nnls

from model_code.incdsi.rows import Pass, dots, highest, joined, length, minus
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

SEEDS = 16
EXACT = 1e-12  # of the scores: what float64 cannot tell from a constraint that is met
ROUNDED = 1 + 1e-9  # more than float64 rounds a bound by
STORED = 2.0**-23  # of |z||v|: rounding a vector to float32 moves its scores by less
MET = 1e-8  # of the scores: a smaller violation is rounding
# rows taken in per round; more once there are more members, so that hard cases take few rounds
GROWTH = 48
PASS_PAYS = 1 / 32  # a new pass is cheaper than testing more than this share of the rows one by one
ROUNDING = 2.0**-52


@dataclass(frozen=True)
class Problem:
    """Hinges max(0, rows @ v - limits)^2 with `weights`, and lambda2 |v - prior|^2; rows (m, H),
    limits, weights (m).

    Its dual, in multipliers x >= 0 (m) with v = prior - rows' x, is

        minimise  1/2 |rows' x|^2 + 1/2 sum_i D_i x_i^2 + (limits - rows @ prior)' x,    D = lambda2 / weights
    """

    rows: np.ndarray
    limits: np.ndarray
    weights: np.ndarray
    prior: np.ndarray
    lambda2: float

    def excesses(self, vector: np.ndarray) -> np.ndarray:
        """Rows @ v - limits (m) in scores: what is above 0 is charged."""
        return self.rows @ vector - self.limits

    def value(self, vector: np.ndarray) -> float:
        """L(v).

        >>> problem = Problem(np.eye(2), np.zeros(2), np.ones(2), np.zeros(2), lambda2=.5)
        >>> problem.value(np.array([2.0, -1.0]))
        6.5
        """
        charged, shift = np.maximum(0.0, self.excesses(vector)), vector - self.prior
        return float(self.weights @ charged**2 + self.lambda2 * (shift @ shift))

    @property
    def diagonal(self) -> np.ndarray:
        """D (m)."""
        return self.lambda2 / self.weights

    def vector(self, multipliers: np.ndarray) -> np.ndarray:
        """V = prior - rows' x."""
        return self.prior - multipliers @ self.rows

    def multipliers(self, vector: np.ndarray) -> np.ndarray:
        """The multipliers (m) of the minimiser `vector` (H): its excesses over D."""
        return np.maximum(0.0, self.excesses(vector)) / self.diagonal

    def residual(self, multipliers: np.ndarray) -> float:
        """By how much multipliers x >= 0 (m) miss optimality, in scores: the largest dual slope of
        a wrong sign.
        """
        slopes = self.diagonal * multipliers - self.excesses(self.vector(multipliers))
        return float(np.where(multipliers > 0, np.abs(slopes), -slopes).max(initial=0.0))


@dataclass(frozen=True)
class Rivals:
    """The scores of one query (the vector of `scan`) with the documents of `state`.

    scan: a pass over V; it may have seen fewer documents than there are, when some were added
    since. The documents it
      did see must not change while this object is in use.
    """

    state: IncDsiState
    scan: Pass

    def above(self, score: float) -> np.ndarray:
        """All rows that may score above `score`; the rest are proven not to."""
        lengths, scores = self.state.vector_lengths.view, self.scan.scores
        # few rows come this far
        near = score - self.scan.uncertainty * self.state.vector_lengths.largest()
        rows = np.flatnonzero(scores >= np.nextafter(np.float32(near), np.float32(-np.inf)))
        rows = rows[scores[rows] + self.scan.uncertainty * lengths[rows] > score]
        return np.concatenate([rows, np.arange(len(scores), len(lengths))])

    def best(self) -> float:
        """M, the best score of any rival, in float64; 0 in an empty collection, where nothing needs
        to be beaten.
        """
        later = np.arange(len(self.scan.scores), len(self.state))
        best = max(self._best_scanned, self._best_of(later))
        return best if best > -np.inf else 0.0

    @cached_property
    def _best_scanned(self) -> float:
        scores = self.scan.scores
        if not len(scores):
            return -np.inf
        top = int(scores.argmax())
        certain = float(scores[top]) - self.scan.uncertainty * float(
            self.state.vector_lengths.view[top]
        )
        rows = self.above(np.nextafter(certain, -np.inf))
        return self._best_of(rows[rows < len(scores)])

    def _best_of(self, rows: np.ndarray) -> float:
        return float(dots(self.state.vectors.view[rows], self.scan.vector).max(initial=-np.inf))

    def seeds(self) -> np.ndarray:
        """The rows (sorted) of about the best 16 rivals: their queries are the likely conflicts."""
        return np.sort(highest(self.scan.scores, SEEDS))


@dataclass(frozen=True)
class DocumentProblem:
    """One document's objective over a whole collection, of which a solver sees a few rows at a
    time.

    query: q (H). best_rival: M. prior: v0 (H). unit: what one unit of gamma1 and gamma2 is in
    scores.
    """

    state: IncDsiState
    query: np.ndarray
    best_rival: float
    prior: np.ndarray
    settings: IncDsiSettings
    unit: float

    @property
    def own_limit(self) -> float:
        """The score q.v that the document's own hinge asks for, M + gamma1."""
        return self.best_rival + self.settings.gamma1 * self.unit

    @property
    def margin(self) -> float:
        """gamma2 in scores: z_j.v may reach s_j less this."""
        return self.settings.gamma2 * self.unit

    def problem(self, rows: np.ndarray) -> Problem:
        """The objective with only the document's own hinge (row 0) and those of `rows` (k)."""
        weights = np.full(len(rows) + 1, 1 - self.settings.lambda1)
        weights[0] = self.settings.lambda1
        hinges = np.empty((len(rows) + 1, len(self.query)))
        hinges[0], hinges[1:] = -self.query, self.state.queries.view[rows]
        limits = np.concatenate([[-self.own_limit], self.limits(rows)])
        return Problem(hinges, limits, weights, self.prior, self.settings.lambda2)

    def limits(self, rows: np.ndarray) -> np.ndarray:
        """What the scores of v with the queries of `rows` may reach, s_j - gamma2: (k)."""
        return self.state.own_scores.view[rows] - self.margin

    def suspects(self, scan: Pass, vector: np.ndarray) -> np.ndarray:
        """All rows (sorted) that `vector` may violate, given the scores of another vector; the rest
        are proven met.

        z_j.v <= z_j.u + |z_j||v - u| with the scanned u, the pass's own error, and that of storing
        v as float32.
        """
        count, state = len(scan.scores), self.state
        away = length(vector - scan.vector) + scan.uncertainty + STORED * length(vector)
        # few rows come this far
        farthest = state.query_lengths.largest() * away * ROUNDED + self.margin
        near = np.flatnonzero(scan.scores - state.own_scores.view[:count] > -farthest)
        near = near[scan.scores[near] + state.query_lengths.view[near] * away > self.limits(near)]
        return np.concatenate([near, np.arange(count, len(state))])

    def violated(self, rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Those of `rows` whose constraint `vector` breaks, worst first, in float64."""
        rows = self.state.may_exceed(rows, vector, self.limits(rows))
        excess = dots(self.state.queries.view[rows], vector) - self.limits(rows)
        broken = np.flatnonzero(excess > EXACT * self.scale(vector))
        return rows[broken[np.argsort(-excess[broken], kind="stable")]]

    def broken(self, rows: np.ndarray, vector: np.ndarray) -> int:
        """How many constraints `vector` breaks, margins apart: the document's own, and those of
        `rows`.
        """
        candidates = self.state.may_exceed(rows, vector, self.state.own_scores.view[rows])
        tolerance = MET * self.scale(vector)
        lost = (
            dots(self.state.queries.view[candidates], vector)
            > self.state.own_scores.view[candidates] + tolerance
        )
        return int(lost.sum()) + int(float(self.query @ vector) < self.best_rival - tolerance)

    def scale(self, vector: np.ndarray) -> float:
        """The size of the scores in this task."""
        longest = max(length(self.query), self.state.query_lengths.largest())
        return longest * length(vector) + abs(self.own_limit)


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
    """What a document's turn begins with: `members` (sorted rows), and a pass over Z near its end,
    or None.
    """

    members: np.ndarray
    scan: Pass | None = None


def solve(task: DocumentProblem, start: Start) -> Solution:
    """The minimiser of `task` over all rows.

    No members are needed, likely conflicts save rounds. Rows that were added since the pass are
    tested one by one.
    """
    members, scan, passes = start.members, start.scan, 0
    vector = None if scan is None else scan.vector
    while True:
        problem = task.problem(members)
        vector, multipliers = minimise(problem, vector)
        suspects = None if scan is None else task.suspects(scan, vector)
        if suspects is None or too_many(suspects, task):
            scan, passes = task.state.queries.scan(vector[None])[0], passes + 1
            suspects = task.suspects(scan, vector)
        others = minus(suspects, members)
        violated = task.violated(others, vector)
        if not len(violated):
            vector = _settled(task, problem, members, vector, multipliers)
            return Solution(vector, members, passes, joined(members, others))
        members = joined(members, violated[: max(GROWTH, len(members))])


def minimise(problem: Problem, near: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser v (H) over the rows of `problem`, and its multipliers (m); near: a vector (H)
    to begin with.

    Up to as many rows as dimensions by non-negative least squares in the dual, |Rx + R'^-1 b| with
    R'R = A A' + D; with more, by Newton's method in the vector.
    """
    if len(problem.limits) > len(problem.prior):
        return _newton(problem, problem.prior if near is None else near)
    stacked = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    factor = qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][: len(problem.limits)]
    pull = problem.excesses(problem.prior)
    multipliers = nnls(factor, solve_triangular(factor, pull, trans=1, check_finite=False))[0]
    return problem.vector(multipliers), multipliers


def _newton(problem: Problem, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser v (H) and its multipliers (m), by steps to the minimum of the quadratic that L
    is at v.

    Once that minimum charges the same rows it is the solution; where rounding hides this, the value
    stops falling.
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
    """The first point of lower value among `goal`, halfway to it, a quarter, ...; `vector` if
    rounding leaves none.
    """
    value, share = problem.value(vector), 1.0
    while share > ROUNDING:
        point = vector + share * (goal - vector)
        if problem.value(point) < value:
            return point
        share /= 2
    return vector


def _with_charged(problem: Problem, charged: np.ndarray) -> np.ndarray:
    """The minimiser (H) if just the `charged` (m) hinges A, c, W counted, below 0 as above.

    (lambda2 I + A'WA) v = lambda2 v0 + A'Wc. Unlike v0 - A'x it keeps its digits where lambda2 is
    nearly 0, and multipliers x, which are excesses times weight / lambda2, are large.
    """
    rows, weighted = problem.rows[charged], problem.weights[charged, None] * problem.rows[charged]
    matrix = weighted.T @ rows + problem.lambda2 * np.eye(rows.shape[1])
    target = problem.lambda2 * problem.prior + problem.limits[charged] @ weighted
    _, vector, singular = lapack.dposv(matrix, target)
    return np.linalg.lstsq(matrix, target, rcond=None)[0] if singular else vector


def too_many(suspects: np.ndarray, task: DocumentProblem) -> bool:
    """Whether reading all of Z again is cheaper than testing `suspects` one by one."""
    return len(suspects) > 64 + PASS_PAYS * len(task.state)


def _settled(
    task: DocumentProblem,
    problem: Problem,
    members: np.ndarray,
    vector: np.ndarray,
    multipliers: np.ndarray,
) -> np.ndarray:
    """V (H), from the active rows alone, in order: it does not depend on the path to these."""
    used = multipliers > 0
    if np.count_nonzero(used) > len(problem.prior):
        goal = _with_charged(problem, used)
        return goal if np.array_equal(problem.excesses(goal) > 0, used) else vector
    active, spread = task.problem(members[used[1:]]), np.zeros_like(multipliers)
    used[0] = True
    spread[used] = _unbounded(active)
    tolerance = max(problem.residual(multipliers), EXACT * task.scale(vector))
    if spread.min() < 0 or problem.residual(spread) > tolerance:
        return vector
    return active.vector(spread[used])


def _unbounded(problem: Problem) -> np.ndarray:
    """The multipliers (m) where every hinge is charged: (A A' + D) x = -b by a Cholesky factor,
    refined once.
    """
    matrix = problem.rows @ problem.rows.T
    matrix.flat[:: len(matrix) + 1] += problem.diagonal
    pull = problem.excesses(problem.prior)
    factor, failed = lapack.dpotrf(matrix)
    if failed:  # singular to rounding: the shortest of the best solutions
        return np.linalg.lstsq(matrix, pull, rcond=None)[0]
    x = lapack.dpotrs(factor, pull)[0]
    return x + lapack.dpotrs(factor, pull - matrix @ x)[0]
