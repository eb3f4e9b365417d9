"""Guards rows on their way in and out: nothing is lost."""

from __future__ import annotations

from model_code.corpus.settings import CorpusSettings
from orchestration.live.rows import as_row, clean


def test_a_document_is_the_same_after_the_way_through_a_row():
    rows = [{"_id": "x", "title": "T", "text": "some\ntext", "date": "2025-01-02", "queries": ["q"],
             "fields": {"fields": {"n": 1}, "queries": "text"}, "package": "p"}]  # fmt: skip
    documents = clean(rows, CorpusSettings(), "x").documents
    assert (documents[0].queries, documents[0].fields) == (
        ("q",), {"fields": {"n": 1}, "queries": "text", "package": "p"}
    )  # fmt: skip
    again = [as_row(document, CorpusSettings()) for document in documents]
    assert clean(again, CorpusSettings(), "x").documents == documents
