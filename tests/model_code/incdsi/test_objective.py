"""Guards the objective: value and optimality of `Problem` against the same in plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.incdsi.documents import NewDocument, mean_query
from model_code.incdsi.objective import Problem, Task
from model_code.incdsi.settings import IncDsiSettings
from tests.model_code.incdsi.small import Oracle, make


def stated(pulled: bool) -> tuple[Problem, Oracle]:
    settings = IncDsiSettings(gamma1=0.4, gamma2=0.7, lambda1=0.3, lambda2=0.05)
    state, (document,) = make(20, 1)
    document = document if pulled else NewDocument("bare", document.queries)
    oracle, query = Oracle(state, document, settings), mean_query(document.queries)
    best = float((state.vectors.view.astype(np.float64) @ query).max())
    task = Task(state, query, best, document.prior, settings, state.score_deviation)
    return task.problem(np.arange(20)), oracle


@pytest.mark.parametrize("pulled", [False, True])
def test_the_value_is_that_of_the_formula(pulled: bool) -> None:
    problem, oracle = stated(pulled)
    for vector in np.random.default_rng(1).normal(size=(5, 8)):
        assert problem.value(vector) == pytest.approx(oracle.value(vector), rel=1e-12)


def test_the_residual_tells_how_far_multipliers_are_from_optimal() -> None:
    problem = Problem(np.eye(1), np.array([-1.0]), np.ones(1), np.zeros(1), lambda2=1.0)
    assert problem.residual(np.array([0.5])) == 0
    assert problem.residual(np.array([0.25])) == 0.5
    assert problem.residual(np.zeros(1)) == 1
