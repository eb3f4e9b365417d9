"""Tests of the objective and of its exact solver.

The objective is compared with plain loops. The solver never ends above the optimum of another
optimiser on the full objective, nor above its dual bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize

from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, mean_query
from model_code.incdsi.scanned_rows import ScannedRows, ScanPass
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import (
    AdditionObjective,
    HingeProblem,
    Rivals,
    _canonical_vector,
    _minimize_by_newton,
    _solve_all_charged,
    minimize_problem,
)
from tests.model_code.incdsi.small import Oracle, make_collection, without_encodings


@pytest.mark.parametrize("pulled", [False, True])
def test_value_follows_the_formula(pulled: bool) -> None:
    settings = IncDsiSettings(gamma1=0.4, gamma2=0.7, lambda1=0.3, lambda2=0.05)
    state, documents = make_collection(20, 1)
    if not pulled:
        documents = without_encodings(documents)
    (document,) = documents
    oracle = Oracle(state, document, settings)
    query = mean_query(document.queries)
    best_rival = float((state.vectors.view.astype(np.float64) @ query).max())

    objective = AdditionObjective(
        state, query, best_rival, document.prior, settings, state.score_deviation
    )
    problem = objective.problem(np.arange(20))

    for vector in np.random.default_rng(1).normal(size=(5, 8)):
        assert problem.value(vector) == pytest.approx(oracle.value(vector), rel=1e-12)


@pytest.mark.parametrize(("multiplier", "residual"), [(0.5, 0), (0.25, 0.5), (0.0, 1)])
def test_residual_measures_distance_from_optimal_multipliers(
    multiplier: float, residual: float
) -> None:
    problem = HingeProblem(np.eye(1), np.array([-1.0]), np.ones(1), np.zeros(1), lambda2=1.0)

    assert problem.residual(np.array([multiplier])) == residual


def add_documents(
    settings: IncDsiSettings, seed: int, pulled: bool = False
) -> Iterator[tuple[Oracle, Added]]:
    """Add two documents to 25, each after an oracle of the state before it."""
    state, documents = make_collection(25, 2, width=6, seed=seed)
    if not pulled:
        documents = without_encodings(documents)
    adder = IncDsiAdder(state, settings)
    for document in documents:
        oracle = Oracle(state, document, settings)
        yield oracle, adder.add(document)


def minimum_by_lbfgs(oracle: Oracle) -> float:
    """Return the smaller of the values that L-BFGS-B reaches from the query and the prior."""
    options = {"maxiter": 5000, "ftol": 0.0, "gtol": 1e-13}
    values = []
    for start in (oracle.query, oracle.prior):
        result = minimize(
            oracle.value,
            np.array(start),
            jac=oracle.gradient,
            method="L-BFGS-B",
            options=options,
        )
        values.append(float(result.fun))
    return min(values)


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize(("margin", "lambda2"), [(0.3, 1e-5), (1.5, 1e-2), (1.0, 1.0), (3.0, 1e-9)])
def test_solver_reaches_the_optimum_of_another_optimiser(
    margin: float, lambda2: float, pulled: bool
) -> None:
    settings = IncDsiSettings(gamma1=margin, gamma2=margin, lambda2=lambda2)

    for oracle, added in add_documents(settings, 1, pulled):
        value = oracle.value(added.solution.vector)
        other_value = minimum_by_lbfgs(oracle)
        assert value <= other_value * (1 + 1e-9) + 1e-12
        # An optimiser that ends far above would prove nothing.
        assert other_value == pytest.approx(value, rel=1e-3)
        assert abs(oracle.gap(added.solution.vector)) < 1e-9


def test_gradient_vanishes_at_the_minimum() -> None:
    for oracle, added in add_documents(IncDsiSettings(lambda2=0.01), seed=3):
        assert np.abs(oracle.gradient(added.solution.vector)).max() < 1e-12


def test_solver_reads_few_rows_and_meets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    state, (document,) = make_collection(2000, 1, width=32, noise=0.4)
    limits = state.own_scores.view - 0.5 * state.score_deviation
    adder = IncDsiAdder(state, IncDsiSettings(gamma1=0.5, gamma2=0.5))

    old_scan = ScannedRows.scan
    passes: list[ScannedRows] = []

    def scan(rows: ScannedRows, vectors: np.ndarray) -> list[ScanPass]:
        if rows is state.queries:
            passes.append(rows)
        return old_scan(rows, vectors)

    monkeypatch.setattr(ScannedRows, "scan", scan)

    solution = adder.add(document).solution

    old_queries = state.queries.view[:2000].astype(np.float64)
    excesses = old_queries @ solution.vector - limits
    unread = np.setdiff1d(np.arange(2000), solution.members)
    assert len(unread) > 1700
    assert excesses[unread].max() <= 1e-11
    assert len(passes) <= 3


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("lambda2", [1e-10, 1e-8])
def test_weak_pull_with_many_charged_rows_stays_exact(pulled: bool, lambda2: float) -> None:
    """Multipliers are then as large as 1 / lambda2.

    A vector that is computed from them would lose half of its digits.
    """
    settings = IncDsiSettings(gamma1=4.0, gamma2=4.0, lambda2=lambda2)
    state, documents = make_collection(600, 4, width=24, seed=5)
    if not pulled:
        documents = without_encodings(documents)
    single_adder = IncDsiAdder(deepcopy(state), settings)
    batch_adder = IncDsiAdder(deepcopy(state), settings)

    batch = batch_adder.add_batch(documents)

    for document, added_in_batch in zip(documents, batch, strict=True):
        oracle = Oracle(single_adder.state, document, settings)
        vector = single_adder.add(document).solution.vector
        charged = np.array(oracle.rows) @ vector > oracle.limits
        assert charged.sum() > 100
        assert abs(oracle.gap(vector)) < 1e-13
        np.testing.assert_array_equal(vector, added_in_batch.solution.vector)


def make_random_problem(seed: int) -> HingeProblem:
    """Make a problem of few or many rows, some equal or zero, with a pull of any strength."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 25))
    width = int(random.integers(1, 8))
    rows = random.normal(size=(count, width))
    rows[random.random(count) < 0.2] = rows[0]
    rows[random.random(count) < 0.1] = 0
    weights = random.uniform(0.05, 0.95, count)
    lambda2 = 10.0 ** random.uniform(-10, 1)
    limits = random.normal(size=count)
    prior = random.normal(size=width)
    return HingeProblem(rows, limits, weights, prior, lambda2)


def minimize_by_bounded_least_squares(problem: HingeProblem) -> np.ndarray:
    """Return the minimum that scipy finds.

    The dual is |Cx - d|^2 with C'C = A A' + D and C'd = -b, which bvls solves exactly.
    """
    matrix = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    target = np.linalg.lstsq(matrix.T, problem.excesses(problem.prior), rcond=None)[0]
    multipliers = lsq_linear(matrix, target, (0, np.inf), method="bvls").x
    return problem.vector(np.maximum(0, multipliers))


@pytest.mark.parametrize("seed", range(60))
def test_solver_is_never_above_bounded_least_squares(seed: int) -> None:
    problem = make_random_problem(seed)

    vector, multipliers = minimize_problem(problem)

    other_value = problem.value(minimize_by_bounded_least_squares(problem))
    assert (multipliers >= 0).all()
    assert problem.value(vector) <= other_value * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_newton_reaches_optimum_from_far_start(seed: int) -> None:
    problem = make_random_problem(seed)
    optimum, _ = minimize_problem(problem)
    far_start = 1e3 * np.random.default_rng(seed).normal(size=len(problem.prior))

    vector, *_ = _minimize_by_newton(problem, far_start)

    assert problem.value(vector) == pytest.approx(problem.value(optimum), rel=1e-9)


@pytest.mark.parametrize("lambda2", [0.1, 1.0])
def test_canonical_vector_depends_on_active_rows_only(lambda2: float) -> None:
    state, (document,) = make_collection(25, 1, width=6, seed=1)
    adder = IncDsiAdder(state, IncDsiSettings(gamma1=1.0, gamma2=1.0, lambda2=lambda2))
    query = mean_query(document.queries)
    rivals = Rivals(state, state.vectors.scan(query[None])[0])
    objective = adder._objective(NewDocument("bare", document.queries), rivals)
    members = np.arange(25)
    problem = objective.problem(members)
    _, multipliers = minimize_problem(problem)
    moved_multipliers = multipliers * (1 + 1e-7)

    vector = _canonical_vector(
        objective, problem, members, problem.vector(multipliers), multipliers
    )
    moved_vector = _canonical_vector(
        objective, problem, members, problem.vector(moved_multipliers), moved_multipliers
    )

    assert 0 < np.count_nonzero(multipliers) <= 6
    np.testing.assert_array_equal(vector, moved_vector)


def test_equal_rows_share_their_multiplier() -> None:
    problem = HingeProblem(np.ones((2, 3)), -np.ones(2), np.ones(2), np.zeros(3), lambda2=1e-300)

    np.testing.assert_allclose(_solve_all_charged(problem), [1 / 6, 1 / 6])
