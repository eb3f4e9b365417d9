"""Guards which files of a folder are documents, and that a source is resolve_source_kind by what
its path is.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.rows import RefusedRow
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources import ignored_files
from model_code.corpus.sources.base import (
    make_source_lock,
    open_locked_source,
    open_source,
    resolve_source_kind,
)
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings


@pytest.fixture
def notes(tmp_path):
    files = {"b.md": "# B\n\nmoss", "a/c.txt": "fern", "a/d.TXT": "oak", "a/kept.md": "yes"}
    files |= dict.fromkeys(
        (".hidden.md", ".git/x.md", "build/x.md", "a/draft.md", "image.png"), "no"
    )
    files |= {".gitignore": "build/\n*.md\n!b.md\n", "a/.gitignore": "draft.md\n!kept.md\n"}
    for name, content in files.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "secret.txt").write_text("no")
    (tmp_path / "notes/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "notes/loop").symlink_to(tmp_path / "notes")
    for name in ("itself", "itself.html"):
        (tmp_path / "notes" / name).symlink_to(name)
    return tmp_path / "notes"


def opened(notes):
    return open_source(CorpusSettings(path="notes"), notes.parent)


def test_folder_source_skips_hidden_and_ignored_files(notes):
    source = opened(notes)

    assert [row.values["id"] for row in source.rows("documents")] == [
        "a/c.txt",
        "a/d.TXT",
        "a/kept.md",
        "b.md",
    ]
    assert source.passed_over == {".png": 1, ".txt": 1, "loop": 1, "itself": 1, ".html": 1}
    assert list(source.rows("queries")) == []


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def documents_for_git(notes):
    """The documents among the files that git would commit."""
    listed = git(notes, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    texts = {name for name in listed if name.lower().endswith((".md", ".txt"))}
    return texts - {"link.txt", ".hidden.md"}


def find_no_program(name):
    """Stand in for `shutil.which` where git is not installed."""


@pytest.mark.parametrize("has_git", [True, False])
def test_git_would_ignore_the_same_files(notes, monkeypatch, has_git):
    shutil.rmtree(notes / ".git")
    git(notes, "init", "-q")
    if not has_git:
        monkeypatch.setattr(ignored_files.shutil, "which", find_no_program)

    source = opened(notes)

    assert set(source.files) == documents_for_git(notes)
    assert source.ignored_files == 1
    assert source.ignored_folders == 1


def test_rules_of_git_count_that_are_in_no_gitignore(notes, tmp_path, monkeypatch):
    shutil.rmtree(notes / ".git")
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/info/exclude").write_text("d.TXT\n")
    (tmp_path / "everywhere").write_text("c.txt\n")
    git(tmp_path, "config", "core.excludesFile", str(tmp_path / "everywhere"))
    # A hook of git runs with these variables.
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    source = opened(notes)
    monkeypatch.undo()

    assert set(source.files) == {"a/kept.md", "b.md"}
    assert documents_for_git(notes) == {"a/kept.md", "b.md"}
    assert source.ignored_files == 3


def test_tracked_file_is_never_ignored(notes):
    shutil.rmtree(notes / ".git")
    git(notes, "init", "-q")
    git(notes, "add", "-f", "build/x.md")
    source = opened(notes)

    assert "build/x.md" in source.files
    assert set(source.files) == documents_for_git(notes)


def test_names_that_git_could_misread_are_asked_for(notes):
    shutil.rmtree(notes / ".git")
    git(notes, "init", "-q")
    names = [":(top)x.txt", "two\nlines.txt", "!no.txt", "-z.txt", "*.txt", "caf\udce9.txt"]
    for name in names:
        (notes / name).write_text("text")
    source = opened(notes)

    assert set(names[:1] + names[2:5]) < set(source.files)
    assert source.ignored_files == 1

    (notes / ".gitignore").write_text("*.txt\n!/:*.txt\nbuild/\n")
    source = opened(notes)

    assert [name for name in source.files if not name.startswith("a/")] == [":(top)x.txt", "b.md"]


def test_named_folder_is_read_even_if_git_ignores_it(notes, tmp_path):
    shutil.rmtree(notes / ".git")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("/notes/\n")

    assert set(opened(notes).files) == {"a/c.txt", "a/d.TXT", "a/kept.md", "b.md"}


def test_lock_names_the_source(notes):
    lock = make_source_lock(CorpusSettings(path="notes"), notes.parent)

    assert lock["source"] == "folder"


def test_lock_does_not_depend_on_other_files(notes):
    settings = CorpusSettings(path="notes")
    lock = make_source_lock(settings, notes.parent)

    (notes / "image.png").write_text("other")

    assert make_source_lock(settings, notes.parent) == lock


def test_changed_document_of_locked_source_is_named(notes):
    settings = CorpusSettings(path="notes")
    lock = make_source_lock(settings, notes.parent)

    (notes / "b.md").write_text("changed")

    with pytest.raises(FreshetError, match=r"b\.md"):
        open_locked_source(settings, notes.parent, lock)


def test_broken_files_are_quarantined(notes):
    (notes / "broken.pdf").write_bytes(b"%PDF")
    settings = CorpusSettings(path="notes", quarantine_limit=0.5)
    built = build_corpus(opened(notes), settings, PassageSettings(cut="sections"))

    assert built.tables["documents"]["document_id"].tolist() == [
        "a/c.txt",
        "a/d.TXT",
        "a/kept.md",
        "b.md",
    ]
    assert built.tables["quarantine"][["record_id", "reason"]].values.tolist() == [
        ["broken.pdf", "unreadable file"]
    ]
    assert [note.file for note in built.notes if note.kind == "refused file"] == ["broken.pdf"]


def test_files_without_reader_are_named(notes):
    (notes / "a/old.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    built = build_corpus(opened(notes), CorpusSettings(path="notes"), PassageSettings())
    found = [(note.file, note.kind) for note in built.notes]

    names = ["a/old.doc", "image.png", "link.txt"]
    assert found == [(name, "unread file") for name in names]
    assert built.report["files_with_notes"] == {"unread file": 3}
    assert len(built.tables["quarantine"]) == 0


def test_tables_of_rows_are_named(notes):
    (notes / "prices.csv").write_text("item,price\nkettle,35\n")

    built = build_corpus(opened(notes), CorpusSettings(path="notes"), PassageSettings())

    (note,) = [note for note in built.notes if note.file == "prices.csv"]
    assert "`freshet add`" in note.detail


@pytest.mark.parametrize(
    ("name", "printable_name"),
    [
        (b"two\nlines.md", "two\\nlines.md"),
        (b"caf\xe9.md", "caf\\xe9.md"),
        (b"\x1b[31m.md", "\\x1b[31m.md"),
        (b"caf\xe9/x.md", "caf\\xe9/x.md"),
    ],
)
def test_file_whose_name_is_no_id_is_refused_alone(notes, name, printable_name):
    (notes / ".gitignore").write_text("build/\n")
    path = os.path.join(os.fsencode(notes), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(b"text")

    source = opened(notes)
    source.describe()
    refused = [row for row in source.rows("documents") if isinstance(row, RefusedRow)]

    assert [(row.record_id, row.reason) for row in refused] == [(printable_name, "bad id")]
    assert "rename the file" in refused[0].detail
    assert len(source.files) == 5


def test_empty_or_absent_folder_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(FreshetError, match=r"holds no document.*\.pdf"):
        open_source(CorpusSettings(path="empty"), tmp_path).describe()
    with pytest.raises(FreshetError, match="does not exist"):
        open_source(CorpusSettings(path="absent"), tmp_path)


def test_one_document_is_no_source(tmp_path):
    (tmp_path / "notes.txt").write_text("Bees fly in spring.")
    with pytest.raises(FreshetError, match="is one document, and a source is a folder"):
        resolve_source_kind(CorpusSettings(path="notes.txt"), tmp_path)


def test_a_source_is_recognised_by_its_path(tmp_path, write_beir):
    write_beir(tmp_path / "beir", [{"_id": "1", "text": "x"}], compress=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "rows.csv").write_text("id,text\n1,x\n")
    found = {
        path: resolve_source_kind(CorpusSettings(path=path), tmp_path)
        for path in ("beir", "docs", "rows.csv", "BeIR/nq")
    }

    assert {path: one.source for path, one in found.items()} == {
        "beir": "beir",
        "docs": "folder",
        "rows.csv": "files",
        "BeIR/nq": "hub",
    }
    assert found["BeIR/nq"].hub.name == "BeIR/nq"
    assert resolve_source_kind(CorpusSettings(), tmp_path).source == "installed_packages"
    assert [
        row.values["id"] for row in open_source(found["rows.csv"], tmp_path).rows("documents")
    ] == ["1"]
