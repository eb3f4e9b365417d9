"""The objective of one added document, and a solver that finds its exact minimum.

IncDSI (Kishore et al., 2023, section 3) adds a document by one small convex problem, instead of
training the index again. The vector v (H) of the new document minimises

    L(v) = lambda1 h(M + gamma1 - q.v)
         + (1 - lambda1) sum_j h(z_j.v - s_j + gamma2)
         + lambda2 |v - v0|^2                                with h(x) = max(0, x)^2

    q       mean query vector (H) of the new document
    M       best score of q among the existing documents
    z_j     representative query (H) of existing document j; Z (n, H) holds all of them
    s_j     score z_j.v_j of document j for its own query; V (n, H) holds all vectors v_j
    v0      prior (H) to which v is pulled: the document's encoding, or 0 as in the paper
    gamma1  margin by which the new document should win its own query
    gamma2  margin by which existing documents should keep theirs

The first term asks that the new document is found by its own queries, the second that no existing
document loses its own. Scores are inner products, and margins are counted in the same unit.

All hinges have the form h(a.v - c). The hinge of the new document has a = -q and c = -(M + gamma1).

Only few of the n constraints matter. One pass over Z gives the scores of all rows with a reference
vector u. For any other vector v, row j can be violated only if z_j.u + |z_j| |v - u| exceeds its
limit. So later rounds test only the few rows that this bound leaves, instead of reading Z again.
The solver adds violated rows to its members until no row outside can be violated. This proves that
the minimum over the members is the minimum over all rows.

In a batch, each document still sees all documents before it, so that its vector equals that of
one-by-one addition. The documents of a batch only share passes. A pass needs a reference vector,
for which a guess is good enough: the solver bounds the distance of the true vector from it, or
reads Z again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular
from scipy.optimize import nnls

from model_code.incdsi.rows import (
    ScanPass,
    difference,
    row_dots,
    sorted_union,
    top_positions,
    vector_norm,
)
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

# Number of best-scoring documents whose constraints are members from the start.
SEED_MEMBERS = 16

# Violations below this share of the scores are not distinguishable from 0 in float64.
FLOAT64_TOLERANCE = 1e-12

# Factor by which a bound is enlarged, since float64 rounds it as well.
BOUND_ENLARGEMENT = 1 + 1e-9

# Rounding a vector to float32 moves its score z.v by less than this share of |z| |v|.
FLOAT32_STORAGE_ERROR = 2.0**-23

# Violations below this share of the scores are not reported as broken constraints.
BROKEN_TOLERANCE = 1e-8

# Least number of violated rows that become members in one round. If there are more members, as many
# rows as members are taken, so that hard problems need few rounds.
MEMBERS_PER_ROUND = 48

# A new pass over Z costs less than testing more than this share of its rows one by one.
PASS_COST_SHARE = 1 / 32
MIN_SUSPECTS_FOR_PASS = 64

# Newton steps shorter than this share are lost in rounding.
MIN_STEP_SHARE = 2.0**-52


@dataclass(frozen=True)
class HingeProblem:
    """Minimise sum_i weights_i max(0, rows_i.v - limits_i)^2 + lambda2 |v - prior|^2 over v (H).

    The dual problem, in multipliers x >= 0 (m) with v = prior - rows' x, is

        minimise  1/2 |rows' x|^2 + 1/2 sum_i D_i x_i^2 + (limits - rows prior)' x
        with      D = lambda2 / weights

    Attributes:
        rows: Vectors of the hinges, (m, H) float64.
        limits: Scores above which a hinge is charged, (m,).
        weights: Weights of the hinges, (m,).
        prior: Vector (H,) to which v is pulled.
        lambda2: Weight of the squared distance to the prior.
    """

    rows: np.ndarray
    limits: np.ndarray
    weights: np.ndarray
    prior: np.ndarray
    lambda2: float

    def excesses(self, vector: np.ndarray) -> np.ndarray:
        """Return rows.v - limits (m,) in scores; a hinge is charged where this is positive."""
        return self.rows @ vector - self.limits

    def value(self, vector: np.ndarray) -> float:
        """Return the objective at a vector (H,).

        >>> problem = HingeProblem(np.eye(2), np.zeros(2), np.ones(2), np.zeros(2), lambda2=.5)
        >>> problem.value(np.array([2.0, -1.0]))
        6.5
        """
        violations = np.maximum(0.0, self.excesses(vector))
        shift = vector - self.prior
        return float(self.weights @ violations**2 + self.lambda2 * (shift @ shift))

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal D (m,) of the dual problem."""
        return self.lambda2 / self.weights

    def vector(self, multipliers: np.ndarray) -> np.ndarray:
        """Return the vector v = prior - rows' x (H,) of multipliers x (m,)."""
        return self.prior - multipliers @ self.rows

    def multipliers(self, vector: np.ndarray) -> np.ndarray:
        """Return the multipliers (m,) of the minimiser (H,): its violations over D."""
        return np.maximum(0.0, self.excesses(vector)) / self.diagonal

    def residual(self, multipliers: np.ndarray) -> float:
        """Return how far multipliers x >= 0 (m,) are from optimality, in scores.

        This is the largest slope of the dual problem that has the wrong sign.
        """
        slopes = self.diagonal * multipliers - self.excesses(self.vector(multipliers))
        violations = np.where(multipliers > 0, np.abs(slopes), -slopes)
        return float(violations.max(initial=0.0))


@dataclass(frozen=True)
class Rivals:
    """The scores of one query with all documents of a state.

    Attributes:
        state: The existing documents.
        scan: Pass over V with the query. Documents that were added after the pass are scored one
            by one. The documents that it covers must not change while this object is in use.
    """

    state: IncDsiState
    scan: ScanPass

    def above(self, score: float) -> np.ndarray:
        """Return all rows that may score above `score`; the others are proven not to."""
        norms = self.state.vector_lengths.view
        scores = self.scan.scores
        # The bound with the largest norm needs no further reading, and leaves few rows.
        lowest = score - self.scan.uncertainty * self.state.vector_lengths.largest()
        rows = np.flatnonzero(scores >= np.nextafter(np.float32(lowest), np.float32(-np.inf)))
        rows = rows[scores[rows] + self.scan.uncertainty * norms[rows] > score]
        later_rows = np.arange(len(scores), len(norms))
        return np.concatenate([rows, later_rows])

    def best(self) -> float:
        """Return M, the best score of any document, in float64; 0 if there are no documents."""
        later_rows = np.arange(len(self.scan.scores), len(self.state))
        best = max(self._best_scanned, self._best_of(later_rows))
        return best if best > -np.inf else 0.0

    @cached_property
    def _best_scanned(self) -> float:
        scores = self.scan.scores
        if not len(scores):
            return -np.inf
        top = int(scores.argmax())
        norm = float(self.state.vector_lengths.view[top])
        # The best score is at least this, so that only rows that may exceed it are scored again.
        lower_bound = float(scores[top]) - self.scan.uncertainty * norm
        rows = self.above(np.nextafter(lower_bound, -np.inf))
        return self._best_of(rows[rows < len(scores)])

    def _best_of(self, rows: np.ndarray) -> float:
        scores = row_dots(self.state.vectors.view[rows], self.scan.vector)
        return float(scores.max(initial=-np.inf))

    def seeds(self) -> np.ndarray:
        """Return the rows of about 16 best documents, sorted: their queries likely conflict."""
        return np.sort(top_positions(self.scan.scores, SEED_MEMBERS))


@dataclass(frozen=True)
class AdditionObjective:
    """The objective L of one added document, over all rows of a state.

    Attributes:
        state: The existing documents.
        query: Mean query q (H,) of the new document.
        best_rival: Best score M of the query among the existing documents.
        prior: Vector v0 (H,) to which the new vector is pulled.
        settings: Weights and margins.
        unit: Size in scores of one unit of gamma1 and gamma2.
    """

    state: IncDsiState
    query: np.ndarray
    best_rival: float
    prior: np.ndarray
    settings: IncDsiSettings
    unit: float

    @property
    def own_limit(self) -> float:
        """The score q.v = M + gamma1 that the document's own hinge asks for."""
        return self.best_rival + self.settings.gamma1 * self.unit

    @property
    def margin(self) -> float:
        """The margin gamma2 in scores: z_j.v may reach s_j less this."""
        return self.settings.gamma2 * self.unit

    def problem(self, rows: np.ndarray) -> HingeProblem:
        """Return the objective with only the document's own hinge and those of some rows.

        Args:
            rows: Rows (k,) of the state. The hinge of the document itself is row 0 of the result.
        """
        hinges = np.empty((len(rows) + 1, len(self.query)))
        hinges[0] = -self.query
        hinges[1:] = self.state.queries.view[rows]
        limits = np.concatenate([[-self.own_limit], self.limits(rows)])
        weights = np.full(len(rows) + 1, 1 - self.settings.lambda1)
        weights[0] = self.settings.lambda1
        return HingeProblem(hinges, limits, weights, self.prior, self.settings.lambda2)

    def limits(self, rows: np.ndarray) -> np.ndarray:
        """Return the scores s_j - gamma2 (k,) that v may reach with the queries of some rows."""
        return self.state.own_scores.view[rows] - self.margin

    def suspects(self, scan: ScanPass, vector: np.ndarray) -> np.ndarray:
        """Return all rows that a vector may violate, sorted; the others are proven to be met.

        The bound is z_j.v <= z_j.u + |z_j| |v - u| with the vector u of the pass, enlarged by the
        error of the pass and of storing v in float32.

        Args:
            scan: Pass over Z. Rows that were added after it are all suspects.
            vector: Vector v (H,) to test.
        """
        state = self.state
        count = len(scan.scores)
        distance = vector_norm(vector - scan.vector) + scan.uncertainty
        distance += FLOAT32_STORAGE_ERROR * vector_norm(vector)
        # The bound with the largest norm needs no further reading, and leaves few rows.
        largest_rise = state.query_lengths.largest() * distance * BOUND_ENLARGEMENT + self.margin
        rows = np.flatnonzero(scan.scores - state.own_scores.view[:count] > -largest_rise)
        highest_scores = scan.scores[rows] + state.query_lengths.view[rows] * distance
        rows = rows[highest_scores > self.limits(rows)]
        return np.concatenate([rows, np.arange(count, len(state))])

    def violated(self, rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the rows whose constraint a vector (H,) violates, worst first, in float64."""
        rows = self.state.may_exceed(rows, vector, self.limits(rows))
        excess = row_dots(self.state.queries.view[rows], vector) - self.limits(rows)
        violated = np.flatnonzero(excess > FLOAT64_TOLERANCE * self.scale(vector))
        worst_first = np.argsort(-excess[violated], kind="stable")
        return rows[violated[worst_first]]

    def broken(self, rows: np.ndarray, vector: np.ndarray) -> int:
        """Count the constraints without margins that a vector (H,) breaks.

        These are the new document losing its own query, and documents of `rows` losing theirs.
        """
        own_scores = self.state.own_scores.view
        rows = self.state.may_exceed(rows, vector, own_scores[rows])
        tolerance = BROKEN_TOLERANCE * self.scale(vector)
        new_scores = row_dots(self.state.queries.view[rows], vector)
        lost = np.count_nonzero(new_scores > own_scores[rows] + tolerance)
        if float(self.query @ vector) < self.best_rival - tolerance:
            lost += 1
        return int(lost)

    def scale(self, vector: np.ndarray) -> float:
        """Return the size of the scores of a vector (H,), to which tolerances are relative."""
        longest = max(vector_norm(self.query), self.state.query_lengths.largest())
        return longest * vector_norm(vector) + abs(self.own_limit)


@dataclass(frozen=True)
class Solution:
    """The minimiser of an objective.

    Attributes:
        vector: The minimiser (H,) float64.
        members: Rows that the solver took into account.
        passes: Number of passes over Z for this document alone.
        suspects: Every row whose constraint the vector may touch; all others are proven to be met.
    """

    vector: np.ndarray
    members: np.ndarray
    passes: int
    suspects: np.ndarray


@dataclass(frozen=True)
class Start:
    """The start of a document's solution.

    Attributes:
        members: Rows that are taken into account from the start, sorted.
        scan: Pass over Z with a vector near the solution; None if there was none.
    """

    members: np.ndarray
    scan: ScanPass | None = None


def solve(objective: AdditionObjective, start: Start) -> Solution:
    """Minimise an objective over all rows.

    Any members are correct, also none; likely conflicts save rounds. Rows that were added after the
    pass of `start` are tested one by one.

    Args:
        objective: Objective of the new document.
        start: Members and pass to start with.
    """
    members = start.members
    scan = start.scan
    passes = 0
    vector = None if scan is None else scan.vector
    while True:
        problem = objective.problem(members)
        vector, multipliers = minimize_problem(problem, vector)
        suspects = None if scan is None else objective.suspects(scan, vector)
        if suspects is None or too_many_suspects(suspects, objective):
            scan = objective.state.queries.scan(vector[None])[0]
            passes += 1
            suspects = objective.suspects(scan, vector)

        others = difference(suspects, members)
        violated = objective.violated(others, vector)
        if not len(violated):
            vector = _canonical_vector(objective, problem, members, vector, multipliers)
            return Solution(vector, members, passes, sorted_union(members, others))
        members = sorted_union(members, violated[: max(MEMBERS_PER_ROUND, len(members))])


def minimize_problem(
    problem: HingeProblem, near: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a problem over its rows.

    Problems with at most as many rows as dimensions are solved by non-negative least squares in the
    dual: minimise |R x + R'^-1 b| with R'R = A A' + D. Others are solved by Newton's method.

    Args:
        problem: Problem to solve.
        near: Vector (H,) at which Newton's method starts.

    Returns:
        The minimiser v (H,), and its multipliers (m,).
    """
    if len(problem.limits) > len(problem.prior):
        return _minimize_by_newton(problem, problem.prior if near is None else near)
    stacked = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    factor = qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][: len(problem.limits)]
    pull = problem.excesses(problem.prior)
    target = solve_triangular(factor, pull, trans=1, check_finite=False)
    multipliers = nnls(factor, target)[0]
    return problem.vector(multipliers), multipliers


def _minimize_by_newton(problem: HingeProblem, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a problem by steps to the minimum of the quadratic function around each point.

    A minimum that charges the same hinges as the point before is the solution. If rounding hides
    this, the iteration ends when the value stops falling.
    """
    value = problem.value(vector)
    charged = problem.excesses(vector) > 0
    while True:
        goal = _minimize_charged(problem, charged)
        if np.array_equal(problem.excesses(goal) > 0, charged):
            return goal, problem.multipliers(goal)
        value_before = value
        vector = _line_search(problem, vector, goal)
        value = problem.value(vector)
        charged = problem.excesses(vector) > 0
        if value >= value_before:
            return vector, problem.multipliers(vector)


def _line_search(problem: HingeProblem, vector: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return the first of the goal, half of the way to it, a quarter, ... with a lower value.

    The vector itself is returned if rounding leaves no lower point.
    """
    value = problem.value(vector)
    share = 1.0
    while share > MIN_STEP_SHARE:
        point = vector + share * (goal - vector)
        if problem.value(point) < value:
            return point
        share /= 2
    return vector


def _minimize_charged(problem: HingeProblem, charged: np.ndarray) -> np.ndarray:
    """Return the minimiser (H,) if exactly the `charged` (m,) hinges counted, on both sides of 0.

    It solves (lambda2 I + A'WA) v = lambda2 v0 + A'Wc. Unlike v0 - A'x, this keeps its precision
    where lambda2 is nearly 0 and the multipliers x, violations times weight / lambda2, are large.
    """
    rows = problem.rows[charged]
    weighted_rows = problem.weights[charged, None] * rows
    matrix = weighted_rows.T @ rows + problem.lambda2 * np.eye(rows.shape[1])
    target = problem.lambda2 * problem.prior + problem.limits[charged] @ weighted_rows
    _, vector, is_singular = lapack.dposv(matrix, target)
    if is_singular:
        return np.linalg.lstsq(matrix, target, rcond=None)[0]
    return vector


def too_many_suspects(suspects: np.ndarray, objective: AdditionObjective) -> bool:
    """Return whether a new pass over Z costs less than testing the suspects one by one."""
    return len(suspects) > MIN_SUSPECTS_FOR_PASS + PASS_COST_SHARE * len(objective.state)


def _canonical_vector(
    objective: AdditionObjective,
    problem: HingeProblem,
    members: np.ndarray,
    vector: np.ndarray,
    multipliers: np.ndarray,
) -> np.ndarray:
    """Compute the minimiser (H,) from its active rows alone, in their order.

    The result does not depend on the path to these rows, to the last bit. If it is less accurate
    than `vector`, that is returned.
    """
    active = multipliers > 0
    if np.count_nonzero(active) > len(problem.prior):
        goal = _minimize_charged(problem, active)
        return goal if np.array_equal(problem.excesses(goal) > 0, active) else vector

    active_problem = objective.problem(members[active[1:]])
    # The document's own hinge is part of every problem.
    active[0] = True
    active_multipliers = np.zeros_like(multipliers)
    active_multipliers[active] = _solve_all_charged(active_problem)
    tolerance = max(problem.residual(multipliers), FLOAT64_TOLERANCE * objective.scale(vector))
    if active_multipliers.min() < 0 or problem.residual(active_multipliers) > tolerance:
        return vector
    return active_problem.vector(active_multipliers[active])


def _solve_all_charged(problem: HingeProblem) -> np.ndarray:
    """Return the multipliers x (m,) if every hinge were charged.

    It solves (A A' + D) x = -b by a Cholesky factor and refines the result once. If the matrix is
    singular to rounding, the shortest least-squares solution is returned.
    """
    matrix = problem.rows @ problem.rows.T
    matrix.flat[:: len(matrix) + 1] += problem.diagonal
    pull = problem.excesses(problem.prior)
    factor, failed = lapack.dpotrf(matrix)
    if failed:
        return np.linalg.lstsq(matrix, pull, rcond=None)[0]
    multipliers = lapack.dpotrs(factor, pull)[0]
    correction = lapack.dpotrs(factor, pull - matrix @ multipliers)[0]
    return multipliers + correction
