"""Tests that only files of documents below the project's folder are found."""

from __future__ import annotations

from model_code.project import Project
from orchestration.service.source_files import find_source_file


def test_file_of_a_document_is_found_inside_the_folder_only(tmp_path):
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    for name in ("sub/a.md", ".hidden.md", "program.sh", "ignored.md", "../outside.md"):
        (notes / name).write_text("text")
    (notes / ".gitignore").write_text("ignored.md\n")
    (tmp_path / "params.yaml").write_text("corpus: {path: notes}\n")
    project = Project(tmp_path)

    assert find_source_file(project, "sub/a.md") == notes / "sub/a.md"
    for document_id in (
        ".hidden.md",
        "program.sh",
        "ignored.md",
        "../outside.md",
        str(tmp_path / "outside.md"),
        "nothing.md",
        "x" * 5000 + ".md",
        "a\0b.md",
    ):
        assert find_source_file(project, document_id) is None


def test_rows_of_a_file_have_no_files(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"_id": "rows.jsonl", "text": "moss"}\n')
    (tmp_path / "params.yaml").write_text("corpus: {path: rows.jsonl}\n")

    assert find_source_file(Project(tmp_path), "rows.jsonl") is None
