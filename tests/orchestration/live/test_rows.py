"""Guards rows on their way in and out: nothing is lost, and what `freshet tools documents` prints is accepted."""

from __future__ import annotations

from model_code.corpus.settings import ColumnSettings, CorpusSettings, PartSettings
from orchestration.live.rows import as_row, clean, package_documents
from orchestration.project import Project

PACKAGE = "pandera"  # installed beside Freshet


def accepted(tmp_path, settings):
    rows = list(package_documents(Project(tmp_path), settings, [PACKAGE]))
    found = clean(rows, settings, "documents")
    assert found.rejected == ()
    return found.documents


def test_the_rules_of_the_projects_own_corpus_do_not_hinder(tmp_path):
    plain = accepted(tmp_path, CorpusSettings())
    assert len(plain) > 5
    assert any(one.queries for one in plain)
    assert all(one.fields["package"] == PACKAGE for one in plain)
    columns = ColumnSettings(document_id="ticket", title="subject", text="body")
    later = PartSettings(by="date", new_from="2025-01-01")
    own = CorpusSettings().replace(columns=columns, parts=later, limit=2)
    assert accepted(tmp_path, own) == plain


def test_a_document_is_the_same_after_the_way_through_a_row():
    rows = [{"_id": "x", "title": "T", "text": "some\ntext", "date": "2025-01-02", "queries": ["q"],
             "fields": {"fields": {"n": 1}, "queries": "text"}, "package": "p"}]  # fmt: skip
    documents = clean(rows, CorpusSettings(), "x").documents
    assert (documents[0].queries, documents[0].fields) == (
        ("q",), {"fields": {"n": 1}, "queries": "text", "package": "p"}
    )  # fmt: skip
    again = [as_row(document, CorpusSettings()) for document in documents]
    assert clean(again, CorpusSettings(), "x").documents == documents
