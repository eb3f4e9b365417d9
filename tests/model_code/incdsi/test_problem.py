"""Guards the objective: value, gradient and dual bound of `Problem` against the same in plain loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from model_code.incdsi.documents import mean_query
from model_code.incdsi.priors import prior_vector
from model_code.incdsi.problem import Problem
from model_code.incdsi.settings import IncDsiSettings
from tests.model_code.incdsi.small import Oracle, make

FORMS = list(product(["squared", "plain"], ["zero", "encoder", "mixed"], ["scores", "standard_deviations"]))


def stated(hinge: str, prior: str, unit: str, seed: int = 0) -> tuple[Problem, Oracle]:
    settings = IncDsiSettings(
        hinge=hinge, prior=prior, margins_in=unit, gamma1=0.4, gamma2=0.7, lambda1=0.3, lambda2=0.05, prior_scale=1.2
    )
    state, (document,) = make(20, 1, seed=seed)
    oracle = Oracle(state, document, settings)
    query = mean_query(document.queries)
    problem = Problem.of(
        query=query,
        best_rival=float((state.vectors.view.astype(np.float64) @ query).max()),
        queries=state.queries.view,
        own_scores=state.own_scores.view,
        prior=prior_vector(settings, query, document.encoding),
        settings=settings,
        unit=state.score_deviation if unit == "standard_deviations" else 1.0,
    )
    return problem, oracle


@pytest.mark.parametrize(("hinge", "prior", "unit"), FORMS)
def test_value_and_gradient_are_those_of_the_formula(hinge: str, prior: str, unit: str) -> None:
    problem, oracle = stated(hinge, prior, unit)
    for vector in np.random.default_rng(1).normal(size=(5, 8)):
        assert problem.value(vector) == pytest.approx(oracle.value(vector), rel=1e-12)
        np.testing.assert_allclose(problem.gradient(vector), oracle.gradient(vector), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("hinge", ["squared", "plain"])
def test_no_vector_goes_below_the_dual_bound(hinge: str) -> None:
    problem, oracle = stated(hinge, "encoder", "scores")
    random = np.random.default_rng(2)
    best, multipliers = problem.minimise()
    assert problem.lower_bound(multipliers) == pytest.approx(problem.value(best), rel=1e-9)
    upper = np.minimum(problem.program.upper, 10.0)
    for _ in range(20):
        bound = problem.lower_bound(random.uniform(0, 1, len(multipliers)) * upper)
        assert bound <= oracle.value(best) + 1e-9
