"""Guards the settings of the pseudo-queries: nonsense is refused with its value named, nested groups parse."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.queries.settings import PseudoQuerySettings
from model_code.settings import parse


def test_nested_groups_override_single_values():
    settings = parse(PseudoQuerySettings, {"inverse_cloze": {"min_words": 4, "max_words": 5}}, "pseudo_queries")
    assert (settings.inverse_cloze.min_words, settings.inverse_cloze.max_words) == (4, 5)
    assert settings.inverse_cloze.per_document == 3


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        ({"dev_share": 0.1}, "only people's judgements judge"),
        ({"consistency_filter": {"by": "bm25"}}, "word for word are dropped; delete the key"),
        ({"generators": ["inverse_cloze", "inverse_cloze"]}, "names one twice"),
        ({"generators": ["inverse_close"]}, r"generators\[0\] is 'inverse_close', but must be one of 'inverse_cloze'"),
        ({"inverse_cloze": {"min_words": 9, "max_words": 8}}, "min_words 9"),
        ({"inverse_cloze": {"max_share": 0.0}}, "max_share is 0"),
        ({"inverse_cloze": {"per_document": 0}}, "per_document is 0"),
        ({"sequence_to_sequence": {"section_tokens": 2}}, "section_tokens is 2"),
        ({"training": {"epochs": 0}}, "epochs is 0"),
        ({"training": {"base": ""}}, "base is '', but must be of length at least 1, or null"),
        (
            {"generators": ["sequence_to_sequence"], "sequence_to_sequence": {"model": "trained"}},
            "training.base is null, so that no model is trained; set training.base",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(mapping, named):
    with pytest.raises(SettingsError, match=named):
        parse(PseudoQuerySettings, mapping, "pseudo_queries")
