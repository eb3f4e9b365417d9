"""Guards the objective (value and optimality against plain loops) and its exact solver: never above
a foreign optimiser on the full objective, nor above its dual bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize

from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, mean_query
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
from tests.model_code.incdsi.small import Oracle, make


@pytest.mark.parametrize("pulled", [False, True])
def test_the_value_is_that_of_the_formula(pulled: bool) -> None:
    settings = IncDsiSettings(gamma1=0.4, gamma2=0.7, lambda1=0.3, lambda2=0.05)
    state, (document,) = make(20, 1)
    document = document if pulled else NewDocument("bare", document.queries)
    oracle, query = Oracle(state, document, settings), mean_query(document.queries)
    best = float((state.vectors.view.astype(np.float64) @ query).max())
    problem = AdditionObjective(
        state, query, best, document.prior, settings, state.score_deviation
    ).problem(np.arange(20))
    for vector in np.random.default_rng(1).normal(size=(5, 8)):
        assert problem.value(vector) == pytest.approx(oracle.value(vector), rel=1e-12)


def test_residual_measures_distance_from_optimal_multipliers() -> None:
    problem = HingeProblem(np.eye(1), np.array([-1.0]), np.ones(1), np.zeros(1), lambda2=1.0)
    assert problem.residual(np.array([0.5])) == 0
    assert problem.residual(np.array([0.25])) == 0.5
    assert problem.residual(np.zeros(1)) == 1


SETTINGS = [
    IncDsiSettings(gamma1=margin, gamma2=margin, lambda2=pull)
    for margin, pull in [(0.3, 1e-5), (1.5, 1e-2), (1.0, 1.0), (3.0, 1e-9)]
]


def additions(
    settings: IncDsiSettings, seed: int, pulled: bool = False
) -> Iterator[tuple[Oracle, Added]]:
    state, documents = make(25, 2, width=6, seed=seed)
    adder = IncDsiAdder(state, settings)
    for document in documents:
        document = document if pulled else NewDocument(document.id, document.queries)
        oracle = Oracle(state, document, settings)
        yield oracle, adder.add(document)


def peer(oracle: Oracle, start: np.ndarray) -> float:
    options = {"maxiter": 5000, "ftol": 0.0, "gtol": 1e-13}
    return float(
        minimize(oracle.value, start, jac=oracle.gradient, method="L-BFGS-B", options=options).fun
    )


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.lambda2:g}")
def test_never_above_a_foreign_optimum_and_proven(settings: IncDsiSettings, pulled: bool) -> None:
    for oracle, added in additions(settings, 1, pulled):
        ours = oracle.value(added.solution.vector)
        theirs = min(
            peer(oracle, start) for start in (np.array(oracle.query), np.array(oracle.prior))
        )
        assert ours <= theirs * (1 + 1e-9) + 1e-12
        assert theirs == pytest.approx(ours, rel=1e-3)  # or the peer would prove nothing
        assert abs(oracle.gap(added.solution.vector)) < 1e-9


def test_at_the_minimum_the_gradient_vanishes() -> None:
    for oracle, added in additions(IncDsiSettings(lambda2=0.01), seed=3):
        assert np.abs(oracle.gradient(added.solution.vector)).max() < 1e-12


def test_solver_reads_few_rows_and_meets_all() -> None:
    state, (document,) = make(2000, 1, width=32, noise=0.4)
    limits = state.own_scores.view - 0.5 * state.score_deviation
    solution = IncDsiAdder(state, IncDsiSettings(gamma1=0.5, gamma2=0.5)).add(document).solution
    excess = state.queries.view[:2000].astype(np.float64) @ solution.vector - limits
    unseen = np.setdiff1d(np.arange(2000), solution.members)
    assert len(unseen) > 1700
    assert excess[unseen].max() <= 1e-11
    assert solution.passes <= 3


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("pull", [1e-10, 1e-8])
def test_weak_pull_with_many_charged_rows_stays_exact(pulled: bool, pull: float) -> None:
    """Multipliers are then as large as 1 / lambda2, and a vector made of them would have lost half
    of its digits.
    """
    state, documents = make(600, 4, width=24, seed=5)
    documents = documents if pulled else [NewDocument(one.id, one.queries) for one in documents]
    settings = IncDsiSettings(gamma1=4.0, gamma2=4.0, lambda2=pull)
    alone, batch = (
        IncDsiAdder(deepcopy(state), settings),
        IncDsiAdder(deepcopy(state), settings).add_batch(documents),
    )
    for document, other in zip(documents, batch, strict=True):
        oracle = Oracle(alone.state, document, settings)
        one = alone.add(document)
        assert (np.array(oracle.rows) @ one.solution.vector > oracle.limits).sum() > 100
        np.testing.assert_array_equal(one.solution.vector, other.solution.vector)
        assert abs(oracle.gap(one.solution.vector)) < 1e-13


def random_problem(seed: int) -> HingeProblem:
    """Few or many rows, some of them equal or zero, with a pull of any strength."""
    random = np.random.default_rng(seed)
    count, width = int(random.integers(1, 25)), int(random.integers(1, 8))
    rows = random.normal(size=(count, width))
    rows[random.random(count) < 0.2] = rows[0]
    rows[random.random(count) < 0.1] = 0
    weights, pull = random.uniform(0.05, 0.95, count), 10.0 ** random.uniform(-10, 1)
    return HingeProblem(rows, random.normal(size=count), weights, random.normal(size=width), pull)


@pytest.mark.parametrize("seed", range(60))
def test_never_above_scipys_bounded_least_squares(seed: int) -> None:
    """The dual as |Cx - d|^2 with C'C = A A' + D and C'd = -b, which bvls solves exactly."""
    problem = random_problem(seed)
    vector, multipliers = minimize_problem(problem)
    assert (multipliers >= 0).all()
    matrix = np.vstack([problem.rows.T, np.diag(np.sqrt(problem.diagonal))])
    target = np.linalg.lstsq(matrix.T, problem.excesses(problem.prior), rcond=None)[0]
    theirs = problem.vector(np.maximum(0, lsq_linear(matrix, target, (0, np.inf), method="bvls").x))
    assert problem.value(vector) <= problem.value(theirs) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_newton_reaches_optimum_from_far_start(seed: int) -> None:
    problem = random_problem(seed)
    far = 1e3 * np.random.default_rng(seed).normal(size=len(problem.prior))
    assert problem.value(_minimize_by_newton(problem, far)[0]) == pytest.approx(
        problem.value(minimize_problem(problem)[0]), rel=1e-9
    )


@pytest.mark.parametrize("pull", [0.1, 1.0])
def test_canonical_vector_depends_on_active_rows_only(pull: float) -> None:
    state, (document,) = make(25, 1, width=6, seed=1)
    settings = IncDsiSettings(gamma1=1.0, gamma2=1.0, lambda2=pull)
    adder = IncDsiAdder(state, settings)
    rivals = Rivals(state, state.vectors.scan(mean_query(document.queries)[None])[0])
    task, members = adder._objective(NewDocument("bare", document.queries), rivals), np.arange(25)
    problem = task.problem(members)
    _, best = minimize_problem(problem)
    assert 0 < np.count_nonzero(best) <= 6
    settled = [
        _canonical_vector(task, problem, members, problem.vector(x), x)
        for x in (best, best * (1 + 1e-7))
    ]
    np.testing.assert_array_equal(*settled)


def test_equal_rows_share_their_multiplier() -> None:
    problem = HingeProblem(np.ones((2, 3)), -np.ones(2), np.ones(2), np.zeros(3), lambda2=1e-300)
    np.testing.assert_allclose(_solve_all_charged(problem), [1 / 6, 1 / 6])
