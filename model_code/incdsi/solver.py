"""The objective of one added document, and a solver that finds its exact minimum.

IncDSI (Kishore et al., 2023, section 3) adds a document by solving one small convex problem instead
of training the index again. The vector v (H) of the new document minimises

    L(v) = lambda1 h(M + gamma1 - q.v)
         + (1 - lambda1) sum_j h(z_j.v - s_j + gamma2)
         + lambda2 |v - v0|^2                                with h(x) = max(0, x)^2

    q       mean query vector (H) of the new document
    M       best score of q among the existing documents
    z_j     representative query (H) of existing document j; Z (n, H) holds all of them
    s_j     score z_j.v_j of document j for its own query; V (n, H) holds all vectors v_j
    v0      prior (H) to which v is pulled: the document's encoding, or 0 as in the paper
    gamma1  margin by which the new document should win its own query
    gamma2  margin by which existing documents should keep their queries

The first term asks that the new document is found by its own queries. The second term asks that
each existing document keeps its query. Scores are inner products, and margins have the same unit.

Each term h is called a hinge. It has the form h(a.v - c) with a vector a and a limit c. It is 0 as
long as the score a.v is at most c. The hinge of the new document has a = -q and c = -(M + gamma1).
The hinge of existing document j has a = z_j and c = s_j - gamma2.

The inequality z_j.v <= s_j - gamma2 is called the constraint of document j, or of row j of Z. A
vector v violates the constraint if the hinge is positive: document j may then lose its query.

Only few of the n constraints matter. The solver therefore keeps a working set of rows of Z, which
are called members. It repeats these steps:

1. Minimise the objective with the hinges of the members alone. This gives a vector v.
2. Find rows outside of the working set whose constraint v violates, and make them members.

If no row outside is violated, the minimum over the members is the minimum over all rows.

Step 2 rarely reads all of Z. A pass computes the scores of all rows of Z with one vector u. For any
other vector v, row j can be violated only if z_j.u + |z_j| |v - u| exceeds its limit. Such a row is
called a suspect. Later rounds test only the suspects.

Several new documents can be added as a batch. One reading of Z then serves a pass for each of them.
The vector u of such a pass is only a guess of the solution v. If v turns out to be so far from u
that too many rows are suspects, the solver makes another pass. Each document of a batch also has to
respect the constraints of the documents before it in the batch. So a batch gives the same vectors
as adding its documents one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular
from scipy.optimize import nnls

from model_code.incdsi.scanned_rows import (
    ScanPass,
    difference,
    row_dots,
    sorted_union,
    top_positions,
    vector_norm,
)
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

# Number of older documents whose constraints the solver considers first. These are the documents
# with the best scores for the query of the new document.
SEED_MEMBERS = 16

# Violations below this share of the scores are rounding errors of float64, and count as 0.
FLOAT64_TOLERANCE = 1e-12

# Factor that enlarges a bound, because the computation of the bound in float64 is rounded as well.
BOUND_ENLARGEMENT = 1 + 1e-9

# Rounding a vector to float32 moves its score z.v by less than this share of |z| |v|.
FLOAT32_STORAGE_ERROR = 2.0**-23

# Violations below this share of the scores are not reported as broken constraints.
BROKEN_TOLERANCE = 1e-8

# Number of violated constraints that may join the working set in one round. A working set that is
# larger than this may double, so that hard problems need few rounds.
MEMBERS_PER_ROUND = 48

# Scoring all rows of Z, the queries of older documents, in one pass takes as long as testing this
# share of them one by one.
PASS_COST_SHARE = 1 / 32

# Suspects are rows that may be violated. Up to this number are tested one by one, even if a pass
# over a small matrix were faster.
MIN_SUSPECTS_FOR_PASS = 64

# Smallest share of a Newton step that the line search tries. Shorter steps are lost in rounding.
MIN_STEP_SHARE = 2.0**-52


@dataclass(frozen=True)
class HingeProblem:
    """The problem of finding the vector v (H,) that minimises a weighted sum of m hinges.

    Hinge i is max(0, rows_i.v - limits_i)^2. It is the squared amount by which the score rows_i.v
    exceeds its limit, or 0 if the score is within the limit. The function to minimise is called the
    objective:

        sum_i weights_i max(0, rows_i.v - limits_i)^2 + lambda2 |v - prior|^2

    The same problem can be solved in its dual form. The dual form has one unknown x_i >= 0 for each
    hinge, called the multiplier of the hinge:

        minimise  1/2 |rows' x|^2 + 1/2 sum_i D_i x_i^2 + (limits - rows prior)' x
        with      D_i = lambda2 / weights_i

    The multipliers x (m,) that solve the dual form give the solution v = prior - rows' x.

    Attributes:
        rows: Vectors of the hinges, (m, H) float64.
        limits: Scores above which a hinge is positive, (m,).
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
        """Return by how much the score of each row exceeds its limit: rows v - limits (m,).

        A hinge with a positive excess is called charged. Only charged hinges add to the objective.
        """
        return self.rows @ vector - self.limits

    def value(self, vector: np.ndarray) -> float:
        """Return the value of the objective at a vector (H,).

        >>> problem = HingeProblem(np.eye(2), np.zeros(2), np.ones(2), np.zeros(2), lambda2=.5)
        >>> problem.value(np.array([2.0, -1.0]))
        6.5
        """
        violations = np.maximum(0.0, self.excesses(vector))
        shift = vector - self.prior
        return float(self.weights @ violations**2 + self.lambda2 * (shift @ shift))

    @property
    def diagonal(self) -> np.ndarray:
        """The numbers D = lambda2 / weights (m,) of the dual form; see `HingeProblem`."""
        return self.lambda2 / self.weights

    def vector(self, multipliers: np.ndarray) -> np.ndarray:
        """Return the vector v = prior - rows' x (H,) that belongs to multipliers x (m,)."""
        return self.prior - multipliers @ self.rows

    def multipliers(self, vector: np.ndarray) -> np.ndarray:
        """Return the multipliers x (m,) of the hinges, given the solution v (H,) of the problem.

        At the solution, x_i = max(0, rows_i.v - limits_i) / D_i: the excess of hinge i, or 0 if it
        is negative, divided by D_i = lambda2 / weights_i. See `HingeProblem` for these symbols.
        """
        return np.maximum(0.0, self.excesses(vector)) / self.diagonal

    def residual(self, multipliers: np.ndarray) -> float:
        """Return how far multipliers x >= 0 (m,) are from the solution of the dual form.

        At the solution, the slope of the dual objective along x_i is 0 if x_i > 0, and at least 0
        if x_i = 0. The result is the largest amount by which a slope breaks its condition. Slopes
        have the unit of scores.
        """
        slopes = self.diagonal * multipliers - self.excesses(self.vector(multipliers))
        violations = np.where(multipliers > 0, np.abs(slopes), -slopes)
        return float(violations.max(initial=0.0))


@dataclass(frozen=True)
class Rivals:
    """The existing documents, with their scores for the query of a new document.

    The new document should be found first for its query, so it competes with all of them.

    Attributes:
        state: The existing documents, with their vectors and queries.
        scan: Scores of the existing documents for the query of the new document. Documents may be
            added to `state` after the scan: the methods score these rows themselves. The scanned
            documents must not change while this object is in use.
    """

    state: IncDsiState
    scan: ScanPass

    def above(self, score: float) -> np.ndarray:
        """Return the rows of all documents whose exact score may be above `score`.

        The scores in `scan` are approximate, with a proven bound on their error. So some of the
        returned rows may score less. All other rows are proven to score at most `score`.
        """
        norms = self.state.vector_lengths.view
        scores = self.scan.scores
        # The error of a score grows with the norm of its row. A first test takes the largest norm
        # for all rows, which is fast. Few rows are left for the test with their own norms.
        lowest = score - self.scan.uncertainty * self.state.vector_lengths.largest()
        # Rounding the threshold up would lose rows, so the next smaller float32 number is taken.
        lowest_float32 = np.nextafter(np.float32(lowest), np.float32(-np.inf))
        rows = np.flatnonzero(scores >= lowest_float32)
        rows = rows[scores[rows] + self.scan.uncertainty * norms[rows] > score]
        later_rows = np.arange(len(scores), len(norms))
        return np.concatenate([rows, later_rows])

    def best(self) -> float:
        """Return M, the best score of any document, in float64. It is 0 without documents."""
        later_rows = np.arange(len(self.scan.scores), len(self.state))
        best = max(self._best_scanned, self._best_of(later_rows))
        return best if best > -np.inf else 0.0

    @cached_property
    def _best_scanned(self) -> float:
        """The best score of the documents in `scan`, computed in float64; -inf without documents.

        The scores in `scan` are approximate, with a proven bound on their error. Only rows that may
        be the best within this error are scored again, in float64.
        """
        scores = self.scan.scores
        if not len(scores):
            return -np.inf
        top = int(scores.argmax())
        norm = float(self.state.vector_lengths.view[top])
        # The exact best score is at least this. Only rows that may reach it can be the best.
        lower_bound = float(scores[top]) - self.scan.uncertainty * norm
        rows = self.above(np.nextafter(lower_bound, -np.inf))
        return self._best_of(rows[rows < len(scores)])

    def _best_of(self, rows: np.ndarray) -> float:
        """Return the best exact score of the documents in some rows (k,); -inf without rows."""
        scores = row_dots(self.state.vectors.view[rows], self.scan.vector)
        return float(scores.max(initial=-np.inf))

    def seeds(self) -> np.ndarray:
        """Return the rows of the existing documents with the best scores for the new query.

        Such documents resemble the new one, so their constraints are likely to be violated.

        Returns:
            Up to `SEED_MEMBERS` rows, ascending.
        """
        return np.sort(top_positions(self.scan.scores, SEED_MEMBERS))


@dataclass(frozen=True)
class AdditionObjective:
    """The function L(v) that the vector v of one new document minimises; see the module.

    L has one hinge for the new document, which should win its own query. It has one hinge for each
    existing document, which should keep its query.

    Attributes:
        state: The existing documents, with their vectors and queries.
        query: Mean query q (H,) of the new document.
        best_rival: Best score M of an existing document for the query.
        prior: Vector v0 (H,) to which the new vector is pulled.
        settings: The weights lambda1 and lambda2, and the margins gamma1 and gamma2.
        unit: Score that equals one unit of gamma1 and gamma2.
    """

    state: IncDsiState
    query: np.ndarray
    best_rival: float
    prior: np.ndarray
    settings: IncDsiSettings
    unit: float

    @property
    def own_limit(self) -> float:
        """The score M + gamma1 that q.v must reach for the new document to win its query."""
        return self.best_rival + self.settings.gamma1 * self.unit

    @property
    def margin(self) -> float:
        """The margin gamma2 in units of scores.

        An older document should beat the new one by at least this margin, for its own query.
        """
        return self.settings.gamma2 * self.unit

    def problem(self, rows: np.ndarray) -> HingeProblem:
        """Return the objective with the hinges of some existing documents only.

        Args:
            rows: Rows (k,) of these documents.

        Returns:
            A problem with k + 1 hinges. Hinge 0 is the hinge of the new document.
        """
        hinges = np.empty((len(rows) + 1, len(self.query)))
        hinges[0] = -self.query
        hinges[1:] = self.state.queries.view[rows]
        limits = np.concatenate([[-self.own_limit], self.limits(rows)])
        weights = np.full(len(rows) + 1, 1 - self.settings.lambda1)
        weights[0] = self.settings.lambda1
        return HingeProblem(hinges, limits, weights, self.prior, self.settings.lambda2)

    def limits(self, rows: np.ndarray) -> np.ndarray:
        """Return the highest score that the new vector may have for each of some older queries.

        The limit of an older document is its own score for its query, minus the margin gamma2. A
        new vector that scores at most this limit does not win the query.

        Args:
            rows: Rows (k,) of the older documents.

        Returns:
            Limits (k,).
        """
        return self.state.own_scores.view[rows] - self.margin

    def suspects(self, scan: ScanPass, vector: np.ndarray) -> np.ndarray:
        """Return the rows whose constraint a vector may violate, by the bound of the module.

        The known score z.u with an earlier vector u bounds the score with the vector v:

            z.v  =  z.u + z.(v - u)  <=  z.u + |z| |v - u|

        Args:
            scan: The known scores z.u, and the vector u.
            vector: The vector v (H,).

        Returns:
            Rows of the suspects, sorted. They include all documents without a known score, which
            were added after the scan.
        """
        state = self.state
        known_scores = scan.scores
        count = len(known_scores)
        own_scores = state.own_scores.view[:count]

        # The distance |v - u|. The two added terms cover the rounding errors of the known scores,
        # and the error of storing v in float32.
        distance = vector_norm(vector - scan.vector) + scan.uncertainty
        distance += FLOAT32_STORAGE_ERROR * vector_norm(vector)

        # A first test takes the largest |z| for all documents, which is fast. A document is a
        # suspect if z.u + rise > s - margin, which is the same as z.u - s > -(rise + margin).
        largest_rise = state.query_lengths.largest() * distance * BOUND_ENLARGEMENT
        rows = np.flatnonzero(known_scores - own_scores > -(largest_rise + self.margin))

        # Few documents are left for the sharper test with the length |z| of each query.
        highest_scores = known_scores[rows] + state.query_lengths.view[rows] * distance
        suspects = rows[highest_scores > self.limits(rows)]

        rows_without_score = np.arange(count, len(state))
        return np.concatenate([suspects, rows_without_score])

    def violated(self, rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the older documents whose constraint a vector violates, the worst first.

        A document's constraint is violated if the vector scores above the document's limit for the
        document's query; see `limits`. The test is exact, in float64.

        Args:
            rows: Rows (k,) of the older documents to test.
            vector: Vector (H,) of the new document.

        Returns:
            Rows of the documents with a violated constraint, the largest violation first.
        """
        # A cheap test in float32 rules most rows out. The exact test follows for the others.
        rows = self.state.may_exceed(rows, vector, self.limits(rows))
        excess = row_dots(self.state.queries.view[rows], vector) - self.limits(rows)
        violated = np.flatnonzero(excess > FLOAT64_TOLERANCE * self.scale(vector))
        worst_first = np.argsort(-excess[violated], kind="stable")
        return rows[violated[worst_first]]

    def broken(self, rows: np.ndarray, vector: np.ndarray) -> int:
        """Count the documents that lose their query because of a vector (H,), without any margin.

        The new document loses its query if an existing document scores higher. An existing document
        loses its query if the new document scores higher.

        Args:
            rows: Rows (k,) of the existing documents to test.
            vector: Vector (H,) of the new document.
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
        """Return an upper bound on the scores of a vector (H,) for all queries.

        Tolerances for rounding errors are shares of this bound.
        """
        longest = max(vector_norm(self.query), self.state.query_lengths.largest())
        return longest * vector_norm(vector) + abs(self.own_limit)


@dataclass(frozen=True)
class Solution:
    """The vector that minimises an objective, and what the solver found on the way.

    Attributes:
        vector: The vector (H,) float64 that minimises the objective.
        members: Rows of the documents whose constraints the solver considered in the end, sorted.
        suspects: All rows whose constraint the vector may violate, and all members, sorted. The
            vector is proven to meet all other constraints.
    """

    vector: np.ndarray
    members: np.ndarray
    suspects: np.ndarray


@dataclass(frozen=True)
class Start:
    """The data that `solve` starts from.

    Attributes:
        members: Rows of the documents whose constraints are considered first, sorted.
        scan: Scores of all queries of older documents with a vector near the solution. None: not
            computed yet.
    """

    members: np.ndarray
    scan: ScanPass | None = None


def solve(objective: AdditionObjective, start: Start) -> Solution:
    """Compute the vector that minimises the objective, by the working set of the module docstring.

    Args:
        objective: Objective of the new document.
        start: The first members, and optionally a pass. The start affects the computing time, but
            not the result.
    """
    members = start.members
    scan = start.scan
    vector = None if scan is None else scan.vector
    while True:
        problem = objective.problem(members)
        vector, multipliers = minimize_problem(problem, vector)

        # Suspects are the documents that might lose their query to this vector. There are many if
        # the vector of `scan` differs too much from it. All queries are then scored again, with
        # this vector.
        suspects = None if scan is None else objective.suspects(scan, vector)
        if suspects is None or too_many_suspects(suspects, objective):
            scan = objective.state.queries.scan(vector[None])[0]
            suspects = objective.suspects(scan, vector)

        others = difference(suspects, members)
        violated = objective.violated(others, vector)
        if not len(violated):
            # All other constraints are met, so this is also the minimum with all constraints.
            vector = _canonical_vector(objective, problem, members, vector, multipliers)
            return Solution(vector, members, sorted_union(members, others))

        worst = violated[: max(MEMBERS_PER_ROUND, len(members))]
        members = sorted_union(members, worst)


def minimize_problem(
    problem: HingeProblem, near: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the vector v (H,) that solves a problem with m hinges, exactly.

    The dual form of the problem has m unknowns, while v has H. So the dual form is solved if
    m <= H. Otherwise Newton's method finds v directly.

    Args:
        problem: Problem to solve.
        near: Vector (H,) at which Newton's method starts. None starts at the prior.

    Returns:
        The minimiser v (H,), and its multipliers (m,).
    """
    hinge_count = len(problem.limits)
    dimension = len(problem.prior)
    if hinge_count <= dimension:
        return _minimize_dual(problem)
    start = problem.prior if near is None else near
    return _minimize_by_newton(problem, start)


def _minimize_dual(problem: HingeProblem) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a problem in its dual form, by non-negative least squares.

    The minimiser is v = prior - A'x, where A (m, H) are the rows. The multipliers x >= 0 minimise

        1/2 |A'x|^2 + 1/2 sum_i D_i x_i^2 + b.x    with D = lambda2 / weights, b = limits - A prior

    Let R (m, m) be the triangular matrix with R'R = A A' + D. The first two terms are then
    1/2 |R x|^2, and completing the square gives, up to a constant,

        1/2 |R x - target|^2    with R' target = -b

    Returns:
        The minimiser v (H,), and its multipliers x (m,).
    """
    # The QR decomposition of the stacked matrix [A'; sqrt(D)] has this R, followed by rows of 0.
    stacked = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    (padded_factor,) = qr(stacked, mode="r", overwrite_a=True, check_finite=False)
    factor = padded_factor[: len(problem.limits)]

    # The excesses of the prior, A prior - limits, are -b. With trans=1, R' target = -b is solved.
    negative_b = problem.excesses(problem.prior)
    target = solve_triangular(factor, negative_b, trans=1, check_finite=False)
    multipliers, _ = nnls(factor, target)
    return problem.vector(multipliers), multipliers


def _minimize_by_newton(problem: HingeProblem, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimise a problem by Newton's method, starting at `vector` (H,).

    A hinge is charged at a point if it is positive there. As long as the same hinges are charged,
    the objective is a quadratic function, whose minimum can be computed directly. Each step goes
    towards this minimum. If the same hinges are charged at the minimum, it is the solution.
    Rounding can prevent this, so the iteration also ends when the objective stops falling.
    """
    value = problem.value(vector)
    charged = problem.excesses(vector) > 0
    while True:
        goal = _minimize_charged(problem, charged)
        same_hinges_are_charged = np.array_equal(problem.excesses(goal) > 0, charged)
        if same_hinges_are_charged:
            return goal, problem.multipliers(goal)
        value_before = value
        vector = _line_search(problem, vector, goal)
        value = problem.value(vector)
        charged = problem.excesses(vector) > 0
        if value >= value_before:
            return vector, problem.multipliers(vector)


def _line_search(problem: HingeProblem, vector: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return a point between `vector` and `goal` with a lower value than `vector`.

    The goal is tried first, then the point half of the way to it, a quarter of the way, and so on.
    If rounding leaves no point with a lower value, `vector` is returned.
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
    """Minimise the objective with only the given hinges, and without the `max` in their terms.

    Without the `max`, the term of a hinge is (a.v - c)^2 also where a.v is below the limit c. The
    objective is then quadratic.

    The minimiser v solves (lambda2 I + A'WA) v = lambda2 v0 + A'Wc. Here A, W and c are the rows,
    weights and limits of the hinges. The formula v0 - A'x would lose precision if lambda2 is nearly
    0, because the multipliers x are then very large.

    Args:
        problem: Problem with m hinges.
        charged: Mask (m,) of the hinges that count.

    Returns:
        The minimiser (H,).
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
    """Return whether scoring all rows again is cheaper than testing the suspects one by one.

    Args:
        suspects: Rows whose constraint the vector of the new document may violate. A new pass, with
            this vector itself, would leave fewer of them.
        objective: Objective of the new document.
    """
    return len(suspects) > MIN_SUSPECTS_FOR_PASS + PASS_COST_SHARE * len(objective.state)


def _canonical_vector(
    objective: AdditionObjective,
    problem: HingeProblem,
    members: np.ndarray,
    vector: np.ndarray,
    multipliers: np.ndarray,
) -> np.ndarray:
    """Compute the minimiser again, so that its rounding does not depend on the solver's start.

    The solver adds constraints in an order that depends on its start. Another order leads to other
    rounding errors, so the same objective could give slightly different vectors. The minimiser
    itself depends only on the hinges with positive multipliers, which are called active. It is
    therefore computed again from the active hinges alone, in the order of their rows. If this
    result is less accurate than `vector`, `vector` is returned.

    Args:
        objective: Objective of the new document.
        problem: Problem of the last round, with m hinges. Hinge 0 belongs to the new document, and
            hinge i to row `members[i - 1]`.
        members: Rows (m - 1,) of the older documents whose constraints were considered.
        vector: Minimiser (H,) that the solver found.
        multipliers: Multipliers (m,) of the minimiser.

    Returns:
        The minimiser (H,).
    """
    active = multipliers > 0
    # With more than H active hinges the dual problem is nearly singular. The minimum of the active
    # hinges alone is then computed directly.
    if np.count_nonzero(active) > len(problem.prior):
        goal = _minimize_charged(problem, active)
        is_minimiser = np.array_equal(problem.excesses(goal) > 0, active)
        return goal if is_minimiser else vector

    active_members = members[active[1:]]
    active_problem = objective.problem(active_members)
    # Hinge 0 is that of the new document. Every problem contains it, whether it is active or not.
    active[0] = True
    active_multipliers = np.zeros_like(multipliers)
    active_multipliers[active] = _solve_all_charged(active_problem)
    tolerance = max(problem.residual(multipliers), FLOAT64_TOLERANCE * objective.scale(vector))
    if active_multipliers.min() < 0 or problem.residual(active_multipliers) > tolerance:
        return vector
    return active_problem.vector(active_multipliers[active])


def _solve_all_charged(problem: HingeProblem) -> np.ndarray:
    """Return the multipliers (m,) of a problem, assuming that every hinge is charged.

    A hinge is charged if the score of its row exceeds its limit. Let A (m, H) be the rows of the
    problem, D the diagonal matrix of the numbers lambda2 / weights, and x the multipliers. If all
    hinges are charged, the solution v = prior - A'x satisfies

        A v - limits = D x,    so    (A A' + D) x = A prior - limits

    The second equation is solved by a Cholesky factor. One further step corrects the rounding of
    the result. If A A' + D is singular within rounding, the least-squares solution with the
    smallest norm is returned.

    A negative multiplier in the result shows that the assumption is wrong.
    """
    matrix = problem.rows @ problem.rows.T
    # Add D to the diagonal: every (m + 1)-th number of a flat matrix (m, m).
    matrix.flat[:: len(matrix) + 1] += problem.diagonal
    # The right-hand side, A prior - limits.
    pull = problem.excesses(problem.prior)
    factor, failed = lapack.dpotrf(matrix)
    if failed:
        return np.linalg.lstsq(matrix, pull, rcond=None)[0]
    multipliers = lapack.dpotrs(factor, pull)[0]
    correction = lapack.dpotrs(factor, pull - matrix @ multipliers)[0]
    return multipliers + correction
