"""Guards that impossible corpus settings are refused with a message that names the remedy."""

from __future__ import annotations

import pytest

from model_code.corpus.settings import CorpusSettings, PassageSettings
from model_code.errors import SettingsError
from model_code.settings import parse


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"source": "beir"}, "path is missing"),
        ({"source": "files"}, "path is missing"),
        ({"source": "hub"}, "hub.name is missing"),
        ({"source": "web"}, "must be one of"),
        ({"packages": []}, "name at least one"),
        ({"limit": 0}, "limit is 0"),
        ({"quarantine_limit": 1.5}, "quarantine_limit is 1.5"),
        ({"files": {"queries": "q.jsonl"}}, "together"),
        ({"splits": {"test_share": 0.9, "dev_share": 0.1}}, "leave queries to train on"),
        ({"parts": {"by": "date"}}, "`freshet add` them when they do; delete the key"),
    ],
)
def test_impossible_corpus_settings_are_refused(mapping, message):
    with pytest.raises(SettingsError, match=message):
        parse(CorpusSettings, mapping, "corpus")


@pytest.mark.parametrize("mapping", [{"words": -1}, {"words": 10, "stride": 11}, {"words": 10, "stride": 0}])
def test_passages_that_would_skip_text_are_refused(mapping):
    with pytest.raises(SettingsError, match=r"^passages(\.words is -1|: stride is)"):
        parse(PassageSettings, mapping, "passages")
