"""Guards the exact solver: never above a foreign optimiser on the full objective, and a certificate that holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import Added
from model_code.incdsi.settings import IncDsiSettings, Prior
from tests.model_code.incdsi.small import Oracle, make

SETTINGS = [
    IncDsiSettings(
        hinge=hinge,
        prior=prior,
        protect=protect,
        margins_in=unit,
        gamma1=margin,
        gamma2=margin,
        lambda2=pull,
        on_conflict="keep",
    )
    for (hinge, prior, protect, unit), (margin, pull) in zip(
        product(["squared", "plain"], ["zero", "encoder", "mixed"], ["all", "won"], ["scores", "standard_deviations"]),
        [(0.3, 1e-5), (1.5, 1e-2), (1.0, 1.0)] * 8,
        strict=True,
    )
]


def additions(settings: IncDsiSettings, seed: int) -> Iterator[tuple[Oracle, Added]]:
    state, documents = make(25, 2, width=6, seed=seed)
    adder = IncDsiAdder(state, settings)
    for document in documents:
        oracle = Oracle(state, document, settings)
        yield oracle, adder.add(document)


def squared_peer(oracle: Oracle, start: np.ndarray) -> float:
    options = {"maxiter": 5000, "ftol": 0.0, "gtol": 1e-13}
    return float(minimize(oracle.value, start, jac=oracle.gradient, method="L-BFGS-B", options=options).fun)


def plain_peer(oracle: Oracle, start: np.ndarray) -> float:
    """The kinks as a smooth programme: a slack for each hinge, at least 0 and at least its excess."""
    width, settings = len(start), oracle.settings
    rows = np.vstack([-np.array(oracle.query), oracle.rows])
    limits = np.array([-oracle.own_limit, *oracle.limits])
    weights = np.array([settings.lambda1, *[1 - settings.lambda1] * len(oracle.rows)])
    jacobian = np.block([[-rows, np.eye(len(rows))], [np.zeros((len(rows), width)), np.eye(len(rows))]])
    offset = np.concatenate([limits, np.zeros(len(rows))])
    found = minimize(
        lambda x: weights @ x[width:] + settings.lambda2 * ((x[:width] - oracle.prior) ** 2).sum(),
        np.concatenate([start, np.maximum(0, rows @ start - limits)]),
        jac=lambda x: np.concatenate([2 * settings.lambda2 * (x[:width] - oracle.prior), weights]),
        constraints={"type": "ineq", "fun": lambda x: jacobian @ x + offset, "jac": lambda x: jacobian},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return oracle.value(found.x[:width])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.hinge}-{s.prior}-{s.protect}-{s.margins_in}")
def test_never_above_a_foreign_optimum_and_proven(settings: IncDsiSettings) -> None:
    peer = squared_peer if settings.hinge == "squared" else plain_peer
    for oracle, added in additions(settings, seed=1):
        ours = oracle.value(added.solution.vector)
        assert added.solution.objective == pytest.approx(ours, rel=1e-9, abs=1e-12)
        theirs = min(peer(oracle, start) for start in (np.array(oracle.query), np.array(oracle.prior)))
        assert ours <= theirs * (1 + 1e-9) + 1e-12
        assert theirs == pytest.approx(ours, rel=1e-3)  # or the peer would prove nothing
        assert added.solution.certificate.proven


def test_at_the_squared_minimum_the_gradient_vanishes() -> None:
    for oracle, added in additions(IncDsiSettings(lambda2=0.01, on_conflict="keep"), seed=3):
        assert np.abs(oracle.gradient(added.solution.vector)).max() < 1e-12


def test_few_rows_are_looked_at_and_the_rest_is_met() -> None:
    state, (document,) = make(2000, 1, width=32, noise=0.4)
    limits = state.own_scores.view - 0.5 * state.score_deviation
    solution = IncDsiAdder(state, IncDsiSettings(gamma1=0.5, gamma2=0.5)).add(document).solution
    excess = state.queries.view[:2000].astype(np.float64) @ solution.vector - limits
    unseen = np.setdiff1d(np.arange(2000), solution.members)
    assert len(unseen) > 1700
    assert excess[unseen].max() <= 1e-11
    assert solution.passes <= 3


@pytest.mark.parametrize("prior", ["zero", "encoder"])
@pytest.mark.parametrize("pull", [1e-10, 1e-8])
def test_hardly_any_pull_and_more_charged_rows_than_dimensions_keep_every_digit(prior: Prior, pull: float) -> None:
    """Multipliers are then as large as 1 / lambda2, and a vector made of them would have lost half of its digits."""
    state, documents = make(600, 4, width=24, seed=5)
    settings = IncDsiSettings(gamma1=4.0, gamma2=4.0, lambda2=pull, prior=prior, on_conflict="keep")
    alone, together = IncDsiAdder(state.copy(), settings), IncDsiAdder(state.copy(), settings)
    one_by_one, batch = [alone.add(document) for document in documents], together.add_batch(documents)
    for one, other in zip(one_by_one, batch, strict=True):
        assert len(one.solution.active) > 100
        np.testing.assert_array_equal(one.solution.vector, other.solution.vector)
        for certificate in (one.solution.certificate, other.solution.certificate):
            assert certificate.proven
            assert certificate.gap < 1e-13
