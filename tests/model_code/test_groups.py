"""Guards the groups of `params.yaml`: defaults are allowed, impossible values are refused with a
line that teaches.
"""

from __future__ import annotations

from typing import Any

import pytest

from model_code.corpus.settings import CorpusSettings
from model_code.drift.settings import DriftSettings
from model_code.errors import SettingsError
from model_code.evaluation.settings import EvaluationSettings, PromotionSettings
from model_code.hierarchy.settings import HierarchySettings
from model_code.incdsi.settings import IncDsiSettings
from model_code.queries.settings import PseudoQuerySettings
from model_code.settings import Settings, parse
from model_code.text.settings import PassageSettings

REFUSED: dict[tuple[str, type[Settings]], list[tuple[dict[str, Any], str]]] = {
    ("corpus", CorpusSettings): [
        ({"source": "beir"}, "path is missing"),
        ({"source": "files"}, "path is missing"),
        ({"source": "hub"}, "hub.name is missing"),
        ({"source": "web"}, "must be one of"),
        ({"packages": []}, "name at least one"),
        ({"limit": 0}, "limit is 0"),
        ({"quarantine_limit": 1.5}, "quarantine_limit is 1.5"),
        ({"files": {"queries": "q.jsonl"}}, "together"),
        ({"splits": {"test_share": 0.7, "dev_share": 0.1}}, "leave queries to train on"),
    ],
    ("passages", PassageSettings): [
        ({"words": -1}, r"^passages\.words is -1"),
        ({"words": 10, "stride": 11}, "^passages: stride is"),
        ({"words": 10, "stride": 0}, "^passages: stride is"),
    ],
    ("pseudo_queries", PseudoQuerySettings): [
        ({"generators": ["inverse_cloze", "inverse_cloze"]}, "names one twice"),
        (
            {"generators": ["inverse_close"]},
            r"generators\[0\] is 'inverse_close', but must be one of 'inverse_cloze'",
        ),
        ({"inverse_cloze": {"min_words": 9, "max_words": 8}}, "min_words 9"),
        ({"inverse_cloze": {"max_share": 0.0}}, "max_share is no setting, but always 0.5"),
        ({"inverse_cloze": {"per_document": 0}}, "per_document is 0"),
        ({"sequence_to_sequence": {"section_tokens": 2}}, "section_tokens is 2"),
        ({"training": {"epochs": 0}}, "epochs is 0"),
        ({"training": {"base": ""}}, "base is '', but must be of length at least 1, or null"),
        (
            {"generators": ["sequence_to_sequence"], "sequence_to_sequence": {"model": "trained"}},
            "training.base is null, so that no model is trained; set training.base",
        ),
    ],
    ("evaluation", EvaluationSettings): [
        ({"metrics": ["R@200"], "main_metric": "R@200"}, "R@200 needs depth >= 200, not 100"),
        ({"main_metric": "MRR@5"}, "must be one of metrics"),
        ({"metrics": ["accuracy"]}, "write nDCG@k"),
        ({"metrics": ["MAP", "MAP"], "main_metric": "MAP"}, "names a metric twice"),
        ({"max_queries": 0}, "at least 1, or null"),
    ],
    ("promotion", PromotionSettings): [
        ({"protected": ["hits"]}, "not a metric"),
        ({"alpha": 0}, "alpha is 0, but must be above 0, below 0.5"),
        ({"margin": -0.1}, "margin is -0.1, but must be at least 0, below 1"),
        ({"alpha": 0.00001}, "10000 permutations cannot give p < alpha"),
    ],
    ("hierarchy", HierarchySettings): [
        ({"branching": 1}, "branching"),
        ({"max_iterations": 0}, "max_iterations"),
    ],
    ("incdsi", IncDsiSettings): [
        ({"lambda1": 6.0}, "lambda1 is 6.0, but must be above 0, below 1"),
        ({"gamma2": -0.1}, "gamma2 is -0.1, but must be at least 0"),
    ],
    ("drift", DriftSettings): [
        ({"alpha": 0.0}, r"^drift.alpha is 0.0, but must be above 0, at most 0.5: Probability"),
        ({"alpha": 0.005}, r"alpha is 0.005, but must be at least 0.011"),
        (
            {"draws": 100},
            r"drift.draws is no setting, but always 999; delete the key",
        ),
        ({"minimum_batch": 5}, r"minimum_batch is 5, but must be at least 10"),
        ({"minimum_batch": 501}, r"minimum_batch is 501, but must be at most 500"),
        ({"window": 0}, "window is no setting, but always 5"),
        ({"cooldown": -1}, "cooldown is no setting, but always 3"),
        ({"growth_limit": 0.0}, "growth_limit is no setting, but always 0.5"),
        ({"conflict_limit": 1.0}, "conflict_limit is no setting, but always 0.3"),
    ],
}


REFUSED_ROWS = []
for _group, _rows in REFUSED.items():
    REFUSED_ROWS += [(_group, *_row) for _row in _rows]


@pytest.mark.parametrize(("group", "values", "message"), REFUSED_ROWS)
def test_impossible_values_are_refused_by_name(
    group: tuple[str, type[Settings]], values: Any, message: str
) -> None:
    where, settings = group

    assert parse(settings, {}, where) == settings()
    with pytest.raises(SettingsError, match=message):
        parse(settings, values, where)


def test_nested_groups_override_single_values() -> None:
    group = {"inverse_cloze": {"min_words": 4, "max_words": 5}}

    cloze = parse(PseudoQuerySettings, group, "it").inverse_cloze

    assert cloze.min_words == 4
    assert cloze.max_words == 5
    assert cloze.per_document == 3


def test_what_the_gate_asks_for_is_evaluated() -> None:
    assert {PromotionSettings().metric, *PromotionSettings().protected} <= set(
        EvaluationSettings().metrics
    )
