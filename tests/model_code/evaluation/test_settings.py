"""Guards that settings that no run or test could serve are refused with the remedy."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.evaluation.settings import EvaluationSettings, PromotionSettings
from model_code.settings import parse


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": ["R@200"], "main_metric": "R@200"}, "R@200 needs depth >= 200, not 100"),
        ({"main_metric": "MRR@5"}, "must be one of metrics"),
        ({"metrics": ["accuracy"]}, "write one of nDCG@k"),
        ({"metrics": ["MAP", "MAP"], "main_metric": "MAP"}, "names a metric twice"),
        ({"max_queries": 0}, "at least 1, or null"),
        ({"rerank_depth": 50}, "there is rrf"),
    ],
)
def test_evaluation_settings_refuse(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(EvaluationSettings, values, "evaluation")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"protected": ["hits"]}, "not a metric"),
        ({"alpha": 0}, "alpha is 0, but must be above 0, below 0.5"),
        ({"margin": -0.1}, "margin is -0.1, but must be at least 0, below 1"),
        ({"alpha": 0.00001}, "10000 permutations cannot give p < alpha"),
    ],
)
def test_promotion_settings_refuse(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(PromotionSettings, values, "promotion")


def test_defaults_fit_each_other():
    assert set(PromotionSettings().protected) <= set(EvaluationSettings().metrics)
    assert PromotionSettings().metric in EvaluationSettings().metrics
