"""Guards rows on their way in and out: nothing is lost."""

from __future__ import annotations

from model_code.corpus.clean_rows import clean_rows, document_to_row
from model_code.corpus.settings import ColumnSettings, CorpusSettings


def test_document_survives_conversion_to_row():
    rows = [
        {
            "_id": "x",
            "title": "T",
            "text": "some\ntext",
            "date": "2025-01-02",
            "queries": ["q"],
            "fields": {"fields": {"n": 1}, "queries": "text"},
            "package": "p",
        }
    ]
    documents = clean_rows(rows, CorpusSettings(), "x").documents

    assert documents[0].queries == ("q",)
    assert documents[0].fields == {"fields": {"n": 1}, "queries": "text", "package": "p"}

    again = [document_to_row(document, ColumnSettings()) for document in documents]
    assert clean_rows(again, CorpusSettings(), "x").documents == documents


def test_default_column_names_are_always_accepted():
    settings = CorpusSettings(columns={"document_id": "key", "text": "body", "date": "opened"})
    ours = {"_id": "x", "title": "T", "text": "some text", "date": "2025-01-02", "kind": "k"}
    theirs = {"key": "x", "title": "T", "body": "some text", "opened": "2025-01-02", "kind": "k"}
    (document,) = clean_rows([ours], settings, "x").documents

    assert clean_rows([theirs, {**ours, "id": ours["_id"]}], settings, "x").documents[0] == document
    assert document.document_id == "x"
    assert document.text == "some text"
    assert document.fields == {"kind": "k"}

    (both,) = clean_rows([{**theirs, "text": "a column of its own"}], settings, "x").documents
    assert both.text == "some text"
    assert both.fields == {"kind": "k", "text": "a column of its own"}
