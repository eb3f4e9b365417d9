"""Guards how a training adapts to few judged pairs, and when it must not."""

from __future__ import annotations

import pytest

from model_code.training.settings import TrainingSettings
from model_code.training.small_sets import adapt_to_small_set, describe_adaptation

SETTINGS = TrainingSettings(epochs=2, batch_size=32, unsupervised_share=0.25, small_set_pairs=400)


@pytest.mark.parametrize("pairs", [40, 100, 300])
def test_small_set_gets_many_small_steps(pairs):
    adapted = adapt_to_small_set(SETTINGS, pairs, has_dev=True)

    assert adapted.steps >= 60
    assert adapted.batch_size == 16
    assert adapted.negatives_per_query == 4


@pytest.mark.parametrize("share", [0.02, 0.98])
def test_small_batch_of_one_kind_is_avoided(share):
    settings = SETTINGS.replace(batch_size=64, unsupervised_share=share)

    assert adapt_to_small_set(settings, 40, has_dev=True).batch_size == 64


def test_longer_training_is_not_shortened():
    adapted = adapt_to_small_set(SETTINGS.replace(epochs=10), 300, has_dev=True)

    # 300 pairs in batches of 12 judged pairs, ten times
    assert adapted.steps == 250


def test_dev_stops_adapted_training_early():
    adapted = adapt_to_small_set(SETTINGS, 40, has_dev=True)

    assert adapted.evaluate_every == 10
    assert adapted.patience == 3


def test_training_without_dev_has_no_patience():
    assert adapt_to_small_set(SETTINGS, 40, has_dev=False).patience is None


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        (SETTINGS, 0),
        (SETTINGS, 400),
        (SETTINGS.replace(steps=5), 40),
        (SETTINGS.replace(small_set_pairs=0), 40),
        (TrainingSettings(), 40),
    ],
)
def test_other_trainings_stay_as_they_are(settings, pairs):
    assert adapt_to_small_set(settings, pairs, has_dev=True) == settings


def test_report_names_changed_keys():
    adapted = adapt_to_small_set(SETTINGS, 40, has_dev=False)

    assert describe_adaptation(SETTINGS, adapted) == {
        "batch_size": 16,
        "negatives_per_query": 4,
        "steps": 60,
    }
