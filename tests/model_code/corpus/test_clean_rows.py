"""Guards rows on their way in and out: nothing is lost."""

from __future__ import annotations

from model_code.corpus.clean_rows import clean_rows, document_to_row
from model_code.corpus.settings import ColumnSettings, CorpusSettings


def test_a_document_is_the_same_after_the_way_through_a_row():
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
    assert (documents[0].queries, documents[0].fields) == (
        ("q",),
        {"fields": {"n": 1}, "queries": "text", "package": "p"},
    )
    again = [document_to_row(document, ColumnSettings()) for document in documents]
    assert clean_rows(again, CorpusSettings(), "x").documents == documents


def test_plain_values_may_go_by_our_names_whatever_the_source_calls_its_columns():
    settings = CorpusSettings(columns={"document_id": "key", "text": "body", "date": "opened"})
    ours = {"_id": "x", "title": "T", "text": "some text", "date": "2025-01-02", "kind": "k"}
    theirs = {"key": "x", "title": "T", "body": "some text", "opened": "2025-01-02", "kind": "k"}
    (document,) = clean_rows([ours], settings, "x").documents
    assert clean_rows([theirs, ours | {"id": ours["_id"]}], settings, "x").documents[0] == document
    assert (document.document_id, document.text, document.fields) == (
        "x",
        "some text",
        {"kind": "k"},
    )
    (both,) = clean_rows([theirs | {"text": "a column of its own"}], settings, "x").documents
    assert (both.text, both.fields) == ("some text", {"kind": "k", "text": "a column of its own"})
