"""Guards that training settings refuse senseless values, and parse from params.yaml."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.settings import parse
from model_code.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"batch_size": 1}, "only one kind"),
        ({"unsupervised_share": 0.001}, "only one kind"),
        ({"cotraining": True}, "cotraining re-clusters at evaluations.*set evaluate_every"),
        ({"patience": 2}, "patience counts evaluations.*set evaluate_every"),
        ({"dev_metric": "accuracy"}, "'accuracy' is not a metric"),
    ],
)
def test_impossible_values_are_refused(changes: dict, reason: str):
    with pytest.raises(SettingsError, match=reason):
        TrainingSettings(**changes)


def test_plain_contrastive_training_needs_no_hierarchy():
    assert not TrainingSettings(hierarchy_weight=0.0, negatives="bm25").needs_hierarchy
    assert not TrainingSettings(hierarchy_weight=0.0, negatives_per_query=0).needs_hierarchy
    assert TrainingSettings(hierarchy_weight=0.0).needs_hierarchy
    assert TrainingSettings(
        hierarchy_weight=0.0, negatives="bm25", batches="siblings"
    ).needs_hierarchy


@pytest.mark.parametrize("removed", ["random", "mined"])
def test_a_removed_value_names_those_that_are_left(removed: str):
    with pytest.raises(
        SettingsError, match=f"training.negatives is '{removed}', but must be one of .*'bm25'"
    ):
        parse(TrainingSettings, {"negatives": removed}, "training")


def test_single_pair_is_a_supervised_batch():
    assert TrainingSettings(batch_size=1, supervision="supervised").batch_size == 1
