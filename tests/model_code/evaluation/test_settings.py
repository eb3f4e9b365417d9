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
        ({"confidence": 95}, r"confidence must be in \[0.5, 1\)"),
        ({"max_queries": 0}, "or null for all"),
        ({"permutations": 10}, "at least 100"),
        ({"rerank_depth": 200}, "rerank_depth 200 needs depth >= 200, not 100"),
        ({"rerank_depth": 0}, "rerank_depth must be at least 1"),
        ({"fusion_constant": -1}, "fusion_constant must be at least 0"),
    ],
)
def test_evaluation_settings_refuse(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(EvaluationSettings, values, "evaluation")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"protected": ["hits"]}, "not a metric"),
        ({"alpha": 0}, "alpha must be in"),
        ({"margin": -0.1}, "margin must be in"),
        ({"alpha": 0.001, "permutations": 500}, "cannot give p < alpha"),
    ],
)
def test_promotion_settings_refuse(values, message):
    with pytest.raises(SettingsError, match=message):
        parse(PromotionSettings, values, "promotion")


def test_defaults_fit_each_other():
    assert set(PromotionSettings().protected) <= set(EvaluationSettings().metrics)
    assert PromotionSettings().metric in EvaluationSettings().metrics
