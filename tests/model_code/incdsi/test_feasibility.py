"""Guards the verdict on the raw constraints: a proof of conflict that can be checked by hand, or a witness that fits;
the paper's remedy; and that a document is in the collection whatever the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from model_code.drift.measures import conflict_share
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import NewDocument, Status, mean_query
from model_code.incdsi.feasibility import Conflict, examine
from model_code.incdsi.objective import Task
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make

MARGINS = {"gamma1": 0.1, "gamma2": 0.1}
AXES = np.eye(4)


def judge(state: IncDsiState, query: np.ndarray) -> np.ndarray | Conflict:
    best = float((state.vectors.view.astype(np.float64) @ query).max())
    task = Task(state, query, best, np.zeros(len(query)), IncDsiSettings(), unit=1.0)
    return examine(task, np.arange(min(3, len(state))))


def raw_constraints(state: IncDsiState, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a.v <= c for the document's own query (first) and all others."""
    vectors, queries = (rows.view.astype(np.float64) for rows in (state.vectors, state.queries))
    own = np.einsum("ij,ij->i", vectors, queries)
    return np.vstack([-query, queries]), np.concatenate([[-(vectors @ query).max()], own])


@pytest.mark.parametrize("seed", range(8))
def test_verdicts_are_proven_and_agree_with_linear_programming(seed: int) -> None:
    state, documents = make(30, 3, width=3 + seed % 3, seed=seed, noise=2.0)
    for document in documents:
        query = mean_query(document.queries)
        rows, limits = raw_constraints(state, query)
        found = judge(state, query)
        feasible = not isinstance(found, Conflict)
        reach = None if feasible else 50.0 / rows.shape[1] ** 0.5
        theirs = linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=limits, bounds=(reach and -reach, reach))
        assert feasible is (theirs.status == 0)
        if feasible:
            assert (rows @ found - limits).max() <= 1e-7
        else:
            check_proof(state, rows, limits, found)


def check_proof(state: IncDsiState, rows: np.ndarray, limits: np.ndarray, conflict: Conflict) -> None:
    """Farkas: weights y >= 0 with c'y < 0, so that A v <= c needs (A'y).v <= c'y, and |v| >= -c'y / |A'y|."""
    weights = np.zeros(len(rows))
    weights[0], weights[1 + conflict.rows] = conflict.own_weight, conflict.weights
    assert (weights >= 0).all()
    assert weights @ limits == pytest.approx(-conflict.shortfall, rel=1e-9)
    assert conflict.shortfall > 0
    assert np.linalg.norm(weights @ rows) * conflict.radius <= conflict.shortfall * (1 + 1e-9)
    assert conflict.radius >= 100 * np.linalg.norm(state.vectors.view, axis=1).max() * (1 - 1e-6)
    assert conflict.ids == tuple(state.ids[row] for row in conflict.rows)


def test_both_verdicts_occur() -> None:
    verdicts = set()
    for seed in range(4):
        state, documents = make(30, 3, width=3 + seed % 3, seed=seed, noise=2.0)
        verdicts |= {type(judge(state, mean_query(document.queries))) for document in documents}
    assert verdicts == {np.ndarray, Conflict}


def contested() -> IncDsiState:
    """Document "a" loses its query to "b", so that whoever asks the same can neither beat "b" nor spare "a"."""
    return IncDsiState(np.stack([AXES[0], 2 * AXES[0], AXES[2]]), AXES[:3], ["a", "b", "c"], score_deviation=1.0)


def test_a_document_without_a_place_is_added_by_its_encoding() -> None:
    adder = IncDsiAdder(contested(), IncDsiSettings(**MARGINS))
    added = adder.add(NewDocument("new", AXES[:1], encoding=AXES[3]))
    assert added.status is Status.INFEASIBLE
    assert added.conflict.ids == ("a",)
    assert added.broken == 1  # its own query; "a" keeps its own
    assert adder.state.ids[-1] == "new"
    np.testing.assert_array_equal(adder.state.vectors.view[-1], AXES[3])


def test_without_an_encoding_the_best_compromise_is_added() -> None:
    settings = IncDsiSettings(**MARGINS)
    added = IncDsiAdder(contested(), settings).add(NewDocument("new", AXES[:1]))
    assert added.status is Status.INFEASIBLE
    np.testing.assert_array_equal(added.vector, added.solution.vector.astype(np.float32))


def test_a_kept_compromise_is_counted_and_not_examined() -> None:
    settings = IncDsiSettings(**MARGINS, on_conflict="keep")
    added = IncDsiAdder(contested(), settings).add(NewDocument("new", AXES[:1], encoding=AXES[3]))
    assert (added.status, added.broken, added.conflict) == (Status.COMPROMISE, 2, None)


def test_the_remedy_leaves_out_the_query_that_is_far_from_the_others() -> None:
    free = AXES[2] - 2 * AXES[0]
    queries = np.stack([free, free, 9 * AXES[0]])
    added = IncDsiAdder(contested(), IncDsiSettings(**MARGINS)).add(NewDocument("new", queries))
    assert (added.status, added.dropped, added.broken) == (Status.FITS_WITHOUT_SOME_QUERIES, 1, 0)
    np.testing.assert_array_equal(added.query, free)
    assert added.vector @ free >= 1.0  # "c", the best rival there
    assert added.vector[:3].max() <= 1.0


def test_a_remedy_that_is_a_compromise_tells_of_the_conflict_all_the_same() -> None:
    free = AXES[2] - 2 * AXES[0]
    settings = IncDsiSettings(**{**MARGINS, "lambda2": 10.0})
    document = NewDocument("new", np.stack([free, free, 9 * AXES[0]]))
    added = IncDsiAdder(contested(), settings).add(document)
    assert (added.status, added.dropped) == (Status.COMPROMISE_WITHOUT_SOME_QUERIES, 1)
    assert added.broken
    assert conflict_share([added.status.name, "FITS"]) == 0.5


def test_the_mean_query_of_what_is_left_is_what_later_documents_must_spare() -> None:
    free = AXES[2] - 2 * AXES[0]
    adder = IncDsiAdder(contested(), IncDsiSettings(**MARGINS))
    adder.add(NewDocument("new", np.stack([free, free, 9 * AXES[0]])))
    np.testing.assert_array_equal(adder.state.queries.view[-1], free)
