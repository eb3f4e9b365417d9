"""Guards what `freshet documents` prints: every documented object of a package, as rows that `freshet add` accepts."""

from __future__ import annotations

from dataclasses import replace

from model_code.corpus.settings import ColumnSettings, CorpusSettings, PartSettings
from orchestration.arrivals import admit, rows_of_mappings
from orchestration.documents_out import package_documents
from orchestration.project import Project

PACKAGE = "pandera"  # installed beside Freshet


def accepted(tmp_path, settings):
    rows = list(package_documents(Project(tmp_path), settings, [PACKAGE]))
    found = admit(rows_of_mappings(rows, settings, "documents"), settings)
    assert found.rejected == ()
    return found.documents


def test_the_rules_of_the_projects_own_corpus_do_not_hinder(tmp_path):
    plain = accepted(tmp_path, CorpusSettings())
    assert len(plain) > 5
    assert all(one.queries and one.fields["package"] == PACKAGE for one in plain)
    columns = ColumnSettings(document_id="ticket", title="subject", text="body")
    later = PartSettings(by="date", new_from="2025-01-01")
    own = replace(CorpusSettings(), columns=columns, parts=later, limit=2)
    assert accepted(tmp_path, own) == plain
