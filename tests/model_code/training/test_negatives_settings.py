"""Guards which settings of the extra negatives make sense together, and when they need the hierarchy."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"negatives_depth": 0}, "negatives_depth is 0"),
        ({"negatives_refresh": 0}, "negatives_refresh is 0"),
        ({"negatives": "bm25", "negatives_skip": -1}, "negatives_skip is -1"),
        ({"negatives": "random", "negatives_skip": 3}, "skip is 3, but random.*set negatives to bm25, mined"),
        ({"negatives_margin": 0.1}, "margin is 0.1, but siblings negatives have no ranks"),
        ({"negatives_outside_leaf": True}, "siblings come from the positive's own leaf"),
    ],
)
def test_what_has_no_effect_or_contradicts_itself_is_refused(changes: dict, reason: str):
    with pytest.raises(SettingsError, match=reason):
        TrainingSettings(**changes)


@pytest.mark.parametrize("kind", ["random", "bm25", "mined", "nearest"])
def test_the_tree_is_needed_only_to_leave_leaves_out(kind: str):
    plain = {"negatives": kind, "hierarchy_weight": 0.0}
    assert not TrainingSettings(**plain).needs_hierarchy
    assert TrainingSettings(**plain, negatives_outside_leaf=True).needs_hierarchy
    assert not TrainingSettings(**plain, negatives_outside_leaf=True, negatives_per_query=0).needs_hierarchy


def test_no_siblings_are_drawn_none_are_contradicted():
    assert TrainingSettings(negatives_per_query=0, negatives_outside_leaf=True).negatives_outside_leaf
