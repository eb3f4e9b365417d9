"""Guards what the registered model answers: hits with titles, and no hits for a query that asks for nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from model_code.errors import SettingsError
from orchestration.registry.served_model import ServedRetriever


@pytest.fixture
def model() -> ServedRetriever:
    served = ServedRetriever()
    served.retriever = SimpleNamespace(search=lambda texts, k: [[(text, 0.5)][:k] for text in texts])
    served.documents = {name: {"title": name.upper(), "text": f"text of {name}"} for name in ("a", "b", "")}
    return served


def test_each_query_gets_its_hits_with_titles_and_texts(model):
    found = model.predict(None, pd.DataFrame({"query": ["b", "a"]}))
    assert found == [
        [{"rank": 1, "score": 0.5, "document_id": one, "title": one.upper(), "text": f"text of {one}"}] for one in "ba"
    ]


def test_an_empty_query_is_refused(model):
    with pytest.raises(SettingsError, match="text is empty"):
        model.predict(None, pd.DataFrame({"query": ["a", ""]}))
