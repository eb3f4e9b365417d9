"""Guards measures of quality and of counts: harm, protected queries beside the paired test, conflicts and growth.

pytest tests/model_code/drift/test_quality.py
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.drift.draws import draw_batches
from model_code.drift.fit import null_mean_difference
from model_code.drift.measured import judge
from model_code.drift.quality import Paired, crowding, new_quality, observe_protected, reciprocal_ranks
from model_code.drift.shares import CONFLICTING, REFINED, conflict_share, measure_growth, observe_conflicts
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test
from model_code.incdsi.documents import Status


def test_new_documents_that_are_found_worse_trip_and_others_do_not() -> None:
    chance = np.random.default_rng(0)
    old = chance.random(300)
    null = null_mean_difference(old, draw_batches(300, 80, 399, seed=0))
    found = [judge([new_quality(old, chance.random(80) - loss, null, 0.01)], 0.05)[0] for loss in (-0.3, 0.0, 0.15)]
    assert [one.tripped for one in found] == [False, False, True]
    assert found[2].detail["new"] - found[2].detail["old"] == pytest.approx(found[2].value)


def test_a_sure_loss_of_new_documents_within_the_margin_is_no_harm() -> None:
    null = np.zeros(399)  # old documents that are all found alike
    old, new = np.ones(300), np.full(80, 0.98)
    assert [judge([new_quality(old, new, null, margin)], 0.05)[0].tripped for margin in (0.01, 0.03)] == [True, False]


def test_protected_queries_agree_with_the_paired_randomisation_test() -> None:
    chance = np.random.default_rng(1)
    before = chance.random(60)
    after = before - 0.05 + 0.2 * chance.standard_normal(60)
    (found,) = judge([observe_protected("old", Paired(before, after), margin=0.0, draws=20000, seed=0)], 0.05)
    two_sided = paired_randomisation_test((after - before)[:, None], 20000, seed=1)[0]
    assert found.name == "protected_old"
    assert found.value == pytest.approx(np.mean(after - before))
    assert found.detail["p"] == pytest.approx(two_sided / 2, abs=0.01)
    assert found.detail["p_any_change"] == pytest.approx(two_sided, abs=0.01)


def test_a_loss_within_the_margin_is_no_harm() -> None:
    before = np.random.default_rng(0).random(400)
    after = before - 0.02 * (np.arange(400) % 2)  # a loss of .01, beyond doubt
    cases = [(0.0, 0.0), (0.02, 0.0), (0.0, np.full(400, 0.02)), (0.0, 0.03 * (np.arange(400) % 2))]
    found = [
        observe_protected("old", Paired(before, after, crowding), margin, 999, seed=0) for margin, crowding in cases
    ]
    assert [judge([one], 0.05)[0].tripped for one in found] == [True, False, False, False]
    assert [one.detail["crowding"] for one in found] == pytest.approx([0, 0, 0.02, 0.015])


def test_crowding_is_what_growth_by_documents_like_the_old_ones_cost() -> None:
    """Beside collections from which a random half was taken away."""
    chance = np.random.default_rng(0)
    ranks = np.array([1, 2, 9, 11, 25, 60, 0])
    before = np.array([reciprocal_ranks(1 + chance.binomial(np.maximum(ranks, 1) - 1, 0.5)) for _ in range(40_000)])
    lost = np.where(ranks > 0, before.mean(axis=0) - reciprocal_ranks(ranks), 0)
    assert crowding(ranks, 0.5) == pytest.approx(lost, abs=0.002)
    assert crowding(ranks, 1.0) == pytest.approx(np.zeros(7), abs=1e-12)


def test_a_gain_never_trips() -> None:
    before = np.random.default_rng(0).random(50)
    assert not judge([observe_protected("new", Paired(before, before + 0.3), 0.0, 999, seed=0)], 0.05)[0].tripped


def test_unpaired_scores_are_refused() -> None:
    with pytest.raises(FreshetError, match=r"protected queries \(old\) have scores of shapes \(3,\) and \(4,\)"):
        observe_protected("old", Paired(np.zeros(3), np.zeros(4)), 0.0, 99, seed=0)


def test_statuses_are_those_of_incdsi() -> None:
    assert {status.name for status in Status} - set(REFINED) == {"NOT_REFINED"}
    assert set(CONFLICTING) < set(REFINED)


def test_conflicts_trip_beyond_what_chance_makes_of_the_limit() -> None:
    def tripped(conflicting: int) -> bool:
        statuses = ["INFEASIBLE"] * conflicting + ["FITS"] * (100 - conflicting) + ["NOT_REFINED"] * 50
        return judge([observe_conflicts(statuses, 0.3, 999, seed=0)], 0.05)[0].tripped

    assert conflict_share(["INFEASIBLE", "FITS", "NOT_REFINED"]) == 0.5
    assert [tripped(count) for count in (0, 30, 34, 45)] == [False, False, False, True]


def test_growth_is_a_share_of_what_was_trained_on() -> None:
    found = measure_growth(60, 100, limit=0.5)
    assert (found.value, found.threshold, found.tripped) == (0.6, 0.5, True)
