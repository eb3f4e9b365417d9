"""Guards what one changed choice of IncDSI does: only that choice changes, and the tables say it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.incdsi_frontier.ablations import BETAS, QUERIES, Ablated, ablations, with_queries
from experiments.incdsi_frontier.methods import INCDSI, tried
from experiments.incdsi_frontier.protocol import Protocol, ProtocolPlan
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tables import ablation_table
from model_code.incdsi.tuning import TrialBench, f_beta
from tests.experiments.incdsi_collection import encoded_collection


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    plan = ProtocolPlan(methods={}, ways={}, trials=4, orders=1, steps=())
    return Protocol(Space(encoded_collection(tmp_path_factory.mktemp("ablations"))), plan)


@pytest.fixture(scope="module")
def found(protocol: Protocol) -> dict[str, list[Ablated]]:
    return ablations(protocol, INCDSI)


def test_every_choice_is_measured_on_the_same_test_queries(protocol: Protocol, found: dict[str, list[Ablated]]) -> None:
    assert {name: len(rows) for name, rows in found.items()} == {
        "beta": len(BETAS),
        "queries per new document": len(QUERIES) + 1,
    }
    split = protocol.arrivals.judge.split
    for row in (row for rows in found.values() for row in rows):
        assert [len(side) for side in row.found] == [len(split.old_queries), len(split.new_queries)]
        assert row.seconds > 0


def test_each_beta_has_the_settings_that_it_likes_best(protocol: Protocol, found: dict[str, list[Ablated]]) -> None:
    trials = tried(INCDSI, protocol.bench, 4, 0)
    judge = protocol.arrivals.judge
    for beta, row in zip(BETAS, found["beta"], strict=True):
        best = max(trials, key=lambda one: f_beta(one.old, one.new, beta))
        vectors = np.stack([one.vector for one in judge.add(best.settings)])
        for ours, theirs in zip(row.found, judge.ranks.reciprocal_ranks(vectors), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_base_of_the_other_tables_is_the_paper_s_beta(found: dict[str, list[Ablated]]) -> None:
    base = found["beta"][BETAS.index(5.0)]
    other = found["queries per new document"][-1]
    assert [change.mean for change in base.less(other)] == [0.0, 0.0]


def test_fewer_queries_are_the_first_ones(protocol: Protocol) -> None:
    judge = protocol.arrivals.judge
    three = [replace(one, queries=np.repeat(one.queries, 3, axis=0) * [[1], [2], [3]]) for one in judge.split.documents]
    split = replace(judge.split, documents=three)
    cut = with_queries(TrialBench(judge.state, split), 2)
    for own, before in zip(cut.split.documents, three, strict=True):
        np.testing.assert_array_equal(own.queries, before.queries[:2])
    assert cut.split.new_targets == split.new_targets


def test_the_table_compares_with_its_last_row() -> None:
    rows = [Ablated("a", (np.ones(4), np.zeros(4)), 0.002), Ablated("b", (np.full(4, 0.5), np.full(4, 0.25)), 0.004)]
    head, _, first, last = ablation_table("beta", rows).splitlines()
    assert head.startswith("| beta | old hit@1")
    assert "| +0.500 [+0.500, +0.500] | -0.250 [-0.250, -0.250] | 2.0 |" in first
    assert "| +0.000 [+0.000, +0.000] | +0.000 [+0.000, +0.000] | 4.0 |" in last
