"""Test the search for the file of a document below the project's source folder."""

from __future__ import annotations

import pytest

from model_code.collection.sync.named_sources import write_sources
from model_code.project import Project
from orchestration.service.source_files import find_source_file, has_source_file


@pytest.fixture
def project(tmp_path) -> Project:
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    for name in ("sub/a.md", ".hidden.md", "program.sh", "ignored.md", "../outside.md"):
        (notes / name).write_text("text")
    (notes / ".gitignore").write_text("ignored.md\n")
    (tmp_path / "params.yaml").write_text("corpus: {path: notes}\n")
    return Project(tmp_path)


def test_file_of_a_document_is_found(project):
    assert find_source_file(project, "sub/a.md") == project.root / "notes/sub/a.md"


@pytest.mark.parametrize(
    "document_id",
    [
        ".hidden.md",
        "program.sh",
        "ignored.md",
        "../outside.md",
        "nothing.md",
        "x" * 5000 + ".md",
        "a\0b.md",
    ],
)
def test_files_that_are_no_documents_are_not_found(project, document_id):
    assert find_source_file(project, document_id) is None


def test_file_of_a_named_source_is_found(project, tmp_path):
    (tmp_path / "wiki").mkdir()
    for name in ("10:30.md", ".hidden.md"):
        (tmp_path / "wiki" / name).write_text("text")
    write_sources(project, {"wiki": "wiki", "rows": "rows.csv"})

    assert find_source_file(project, "wiki:10\\:30.md") == project.root / "wiki/10:30.md"
    for document_id in (
        "wiki:.hidden.md",
        "wiki:../outside.md",
        "wiki:",
        "rows:1.md",
        "other:a.md",
    ):
        assert find_source_file(project, document_id) is None
    assert find_source_file(project, "sub/a.md") == project.root / "notes/sub/a.md"


def test_absolute_path_outside_the_folder_is_not_found(project):
    assert find_source_file(project, str(project.root / "outside.md")) is None


def test_rows_of_a_file_have_no_files(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"_id": "rows.jsonl", "text": "moss"}\n')
    (tmp_path / "params.yaml").write_text("corpus: {path: rows.jsonl}\n")

    assert find_source_file(Project(tmp_path), "rows.jsonl") is None


@pytest.mark.parametrize(
    ("document_id", "expected"),
    [
        ("sub/a.md", True),
        (".hidden.md", False),
        ("program.sh", False),
        ("../outside.md", False),
        ("nothing.md", False),
        ("a\0b.md", False),
    ],
)
def test_document_has_a_file_without_a_process(project, monkeypatch, document_id, expected):
    def refuse(*arguments, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.run", refuse)
    monkeypatch.setattr("os.scandir", refuse)

    assert has_source_file(project, document_id) is expected
