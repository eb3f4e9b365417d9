"""Tests of `freshet sync`.

After any edits the index holds what the source holds, and nothing is lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from model_code.collection.index.changes import add_files, delete_documents
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.reading_notes_file import read_reading_notes
from model_code.collection.segments.documents import read_columns, write_documents
from model_code.collection.sync import source_contents
from model_code.collection.sync.sync import sync
from model_code.corpus.build import build_corpus
from model_code.corpus.reading_notes import sort_notes
from model_code.corpus.rows import Row
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources import folder as folder_module
from model_code.corpus.sources.base import open_source
from model_code.corpus.sources.folder import FolderSource
from model_code.corpus.tables import write_table
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings
from orchestration.cli import app
from tests.document_files import pdf
from tests.live_example import BASE, collection_of, make_project

# Number of scripts of edits per seed. There are a thousand scripts in all, of which the first two
# hundred run always.
SCRIPTS = 20
SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 50))]
WORDS = ["moss", "fern", "oak", "bark", "root", "leaf", "seed", "stem", "bud", "twig"]


@pytest.fixture
def live(tmp_path):
    """A live collection whose source is the empty folder `notes`."""
    project = make_project(tmp_path)
    (tmp_path / "params.yaml").write_text("{corpus: {path: notes}, retrievers: {hce: {}}}\n")
    (tmp_path / "notes").mkdir()
    return collection_of(project)


@pytest.fixture
def searched(live):
    """The live collection, after a sync with one note."""
    write(live, kept="Moss stays.")
    sync(live, force=True)
    return live


@pytest.mark.parametrize("content", ["[]", '{"sync": "text"}', "{", ""])
def test_damaged_file_of_reading_notes_is_refused(live, content):
    live.project.state.mkdir(parents=True, exist_ok=True)
    (live.project.state / "reading_notes.json").write_text(content)

    with pytest.raises(FreshetError, match="reading_notes.json is no .*; restore it from a backup"):
        read_reading_notes(live.project)


def test_expired_document_of_the_source_is_left_out(searched):
    write(searched, notice="---\nexpires: 2020-01-01\n---\nFern is closed.")

    report = sync(searched)

    assert report.added == []
    assert report.expired == 1
    assert "1 expired" in str(report)


def test_documents_that_expire_are_deleted_without_force(searched, monkeypatch):
    # The stand-in builder has no searcher, which would find the expired documents.
    monkeypatch.setattr(LiveIndex, "remove_expired", lambda self: None)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for number in range(5):
        text = f"---\nexpires: {tomorrow.isoformat()}\n---\nNotice {number}."
        write(searched, **{f"notice{number}": text})
    sync(searched)
    monkeypatch.setattr(source_contents, "datetime", NextWeek)

    report = sync(searched)

    assert len(report.deleted) == 5
    assert_changes(sync(searched), unchanged=1)


class NextWeek(datetime):
    """A clock that is a week ahead."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(weeks=1)


def test_dry_run_says_that_force_is_needed(searched):
    for path in (searched.project.root / "notes").iterdir():
        path.unlink()

    report = sync(searched, dry_run=True)

    assert report.deleted == ["kept.md"]
    assert "but it needs --force: 1 of 1 documents are no longer in the source" in str(report)
    assert sync(searched, dry_run=True, force=True).doubt == ""


def test_link_that_leads_out_of_the_folder_is_named(searched):
    notes = searched.project.root / "notes"
    (notes / "other").symlink_to(searched.project.root / "live")
    (notes / "linked.md").symlink_to(searched.project.root / "params.yaml")
    (notes / "inner.txt").symlink_to(notes / "kept.md")
    (notes / "loop.md").symlink_to(notes / "loop.md")

    report = sync(searched)

    assert [note.file for note in report.notes] == ["linked.md", "other"]
    assert "a link that leads out of the folder" in report.notes[0].detail


def use_rows(live, name):
    """Make a file of rows the project's own source."""
    live.project.params_file.write_text(
        f"{{corpus: {{path: {name}}}, retrievers: {{hce: {{}}}}}}\n"
    )


def write(live, **files):
    """Write Markdown files of the source: texts or bytes by name."""
    for name, text in files.items():
        path = live.project.root / "notes" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(content)


def write_rows(live, rows):
    """Make a file of rows, `rows.jsonl`, the project's own source."""
    lines = [json.dumps(row) + "\n" for row in rows]
    (live.project.root / "rows.jsonl").write_text("".join(lines))
    use_rows(live, "rows.jsonl")


def assert_changes(report, added=(), updated=(), deleted=(), unchanged=0):
    """Check which documents a sync changed, and how many it left unchanged."""
    assert report.added == list(added)
    assert report.updated == list(updated)
    assert report.deleted == list(deleted)
    assert report.unchanged == unchanged


def test_first_sync_replaces_the_build(live):
    """The documents of the build came from the source."""
    write(live, a="one", b="two", c="three")

    report = sync(live)

    assert_changes(report, added=["a.md", "b.md", "c.md"], deleted=sorted(BASE))


@pytest.fixture
def edited(live):
    """A synced source in which one file was changed and one was renamed."""
    write(live, a="one", b="two", c="three")
    sync(live)
    write(live, a="changed")
    (live.project.root / "notes/b.md").rename(live.project.root / "notes/d.md")
    return live


@pytest.mark.parametrize("dry_run", [True, False])
def test_sync_follows_edits(edited, dry_run):
    report = sync(edited, dry_run=dry_run)

    assert_changes(report, added=["d.md"], updated=["a.md"], deleted=["b.md"], unchanged=1)


def test_second_sync_reads_and_changes_nothing(edited, monkeypatch):
    first = sync(edited)

    # A file that is read fails.
    monkeypatch.setattr(FolderSource, "read", None)
    again = sync(edited)

    assert_changes(again, unchanged=3)
    assert again.generation == first.generation


@pytest.mark.parametrize(("merge_duplicates", "unchanged"), [("none", 6), ("text", 6)])
def test_copied_folder_moves_no_document(live, merge_duplicates, unchanged):
    live.project.params_file.write_text(
        f"{{corpus: {{path: notes, merge_duplicates: {merge_duplicates}}}, retrievers: {{hce: {{}}}}}}\n"
    )
    write(live, **{f"notes/{number}": f"text {number}" for number in range(6)})
    sync(live, force=True)

    shutil.copytree(live.project.root / "notes/notes", live.project.root / "notes/a copy")
    report = sync(live)

    assert report.deleted == []
    assert report.unchanged == unchanged


def test_merging_later_keeps_copied_documents(live):
    write(live, **{f"notes/{number}": f"text {number}" for number in range(6)})
    sync(live, force=True)
    shutil.copytree(live.project.root / "notes/notes", live.project.root / "notes/a copy")
    sync(live)

    live.project.params_file.write_text(
        "{corpus: {path: notes, merge_duplicates: text}, retrievers: {hce: {}}}\n"
    )
    report = sync(live)

    assert report.deleted == []
    assert report.unchanged == 12
    assert len(live.content_hashes()) == 12


def test_equal_texts_are_kept_in_sync_build_and_add(live):
    write(live, a="# A\n\nmoss", b="# B\n\nmoss", c="# C\n\nmoss")
    notes = live.project.root / "notes"

    assert add_files(live, [notes], dry_run=True).added == ["a.md", "b.md", "c.md"]
    assert sync(live, dry_run=True).added == ["a.md", "b.md", "c.md"]
    assert len(build_hashes(live)) == 3


@pytest.fixture
def merging(live):
    """A source of two files whose settings merge duplicates, after three duplicates arrived."""
    live.project.params_file.write_text(
        "{corpus: {path: notes, merge_duplicates: text}, retrievers: {hce: {}}}\n"
    )
    write(live, b="moss", c="fern")
    sync(live, force=True)
    write(live, a="Moss", c="moss", d="moss")
    return live


def test_merging_leaves_out_only_new_documents(merging):
    report = sync(merging)

    assert_changes(report, updated=["c.md"], unchanged=1)
    assert report.merged == {"a.md": "b.md", "d.md": "b.md"}


def test_merged_documents_are_reported(merging):
    report = str(sync(merging))

    assert "1 updated, 1 unchanged, 2 merged" in report
    assert "  merged    a.md  says the same as b.md" in report


def test_added_files_are_merged_like_the_source(merging):
    sync(merging)

    report = add_files(merging, [merging.project.root / "notes"])

    assert report.merged == {"a.md": "b.md", "d.md": "b.md"}
    assert report.unchanged == 2


def test_merged_document_replaces_its_deleted_duplicates(merging):
    sync(merging)

    (merging.project.root / "notes/b.md").unlink()
    (merging.project.root / "notes/c.md").unlink()

    assert sync(merging).added == ["a.md"]


def test_files_that_git_ignores_are_counted(live):
    write(live, a="one", b="two", **{"build/c": "three"})
    notes = live.project.root / "notes"
    (notes / ".gitignore").write_text("b.md\nbuild/\n")

    sync_report = sync(live, force=True)
    add_report = add_files(live, [notes])

    line = "1 file and 1 folder are left out, because git ignores them"
    assert sync_report.added == ["a.md"]
    assert line in str(sync_report)
    assert line in str(add_report)


@pytest.fixture
def with_unreadable(live):
    """A synced source of two files, one of which has become unreadable."""
    write(live, a="one", b="two")
    sync(live)
    write(live, a=b"caf\0")
    return live


def test_unreadable_file_keeps_its_document(with_unreadable):
    report = sync(with_unreadable)

    assert_changes(report, unchanged=1)
    assert [row["document_id"] for row in report.rejected] == ["a.md"]
    assert "a.md" in with_unreadable.content_hashes()


def test_document_of_deleted_unreadable_file_is_deleted(with_unreadable):
    sync(with_unreadable)

    (with_unreadable.project.root / "notes/a.md").unlink()

    assert sync(with_unreadable).deleted == ["a.md"]


def write_file_named(folder, name):
    """Write a text file whose name is given as bytes."""
    with open(os.path.join(os.fsencode(folder), name), "wb") as stream:
        stream.write(b"text")


@pytest.mark.parametrize(
    ("name", "printed_name"),
    [(b"two\nlines.md", "two\\nlines.md"), (b"caf\xe9.md", "caf\\xe9.md")],
)
def test_file_with_unusable_name_stops_no_deletion(live, name, printed_name):
    write(live, a="one", b="two")
    sync(live, force=True)
    folder = live.project.root / "notes"
    write_file_named(folder, name)
    (folder / "b.md").unlink()

    report = sync(live)

    (refused,) = report.rejected
    assert report.deleted == ["b.md"]
    assert report.kept == 0
    assert "bad id" in refused["reason"]
    assert refused["document_id"] == printed_name


@pytest.fixture
def with_notes(live):
    """A source with a file of another encoding and a file of an old format."""
    write(live, a=b"caf\xe9", b="two")
    (live.project.root / "notes" / "old.doc").write_bytes(b"\xd0\xcf")
    return live


def test_parts_that_are_not_read_are_reported(with_notes):
    report = sync(with_notes, force=True)

    notes = sort_notes(report.notes)
    assert [(note.file, note.kind) for note in notes] == [
        ("old.doc", "unread file"),
        ("a.md", "encoding"),
    ]
    assert "unread file: 1 file\n    old.doc  it is an old Office format" in str(report)
    assert read_reading_notes(with_notes.project) == notes


def test_unchanged_files_keep_their_notes(with_notes):
    """They are not read again."""
    sync(with_notes, force=True)

    assert len(sync(with_notes).notes) == 2


def test_notes_end_when_files_can_be_read(with_notes):
    sync(with_notes, force=True)

    write(with_notes, a="cafe")
    (with_notes.project.root / "notes" / "old.doc").unlink()

    assert sync(with_notes).notes == []
    assert read_reading_notes(with_notes.project) == []


def test_refused_file_is_noted_until_it_is_read(live):
    write(live, a="one", b=b"\0")

    report = sync(live, force=True)
    notes_while_refused = read_reading_notes(live.project)
    write(live, b="two")
    sync(live)

    (note,) = notes_while_refused
    assert report.notes == []
    assert note.file == "b.md"
    assert note.kind == "refused file"
    assert read_reading_notes(live.project) == []


def test_added_file_without_text_is_noted_until_it_has_some(live, tmp_path):
    path = tmp_path / "scan.pdf"
    path.write_bytes(pdf([""]))
    add_files(live, [path])
    notes_of_empty_file = read_reading_notes(live.project)

    path.write_bytes(pdf(["text"]))
    add_files(live, [path])

    assert [note.file for note in notes_of_empty_file] == ["scan.pdf"]
    assert read_reading_notes(live.project) == []


def test_added_file_with_unusable_name_is_refused_alone(live, tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "good.md").write_text("good")
    write_file_named(folder, b"two\nlines.md")
    write_file_named(folder, b"caf\xe9.md")

    report = add_files(live, [folder])

    assert report.added == ["good.md"]
    assert [row["document_id"] for row in report.rejected] == ["caf\\xe9.md", "two\\nlines.md"]
    assert len(str(report).splitlines()) == 3


def test_notes_of_added_files_are_kept_until_they_are_deleted(live, tmp_path):
    path = tmp_path / "half.pdf"
    path.write_bytes(pdf(["one", ""]))

    report = add_files(live, [path])
    notes_of_added_file = read_reading_notes(live.project)
    delete_documents(live, ["half.pdf"])

    assert "pages without text: 1 file" in str(report)
    assert [note.file for note in notes_of_added_file] == ["half.pdf"]
    assert read_reading_notes(live.project) == []


@pytest.fixture(params=["rows.jsonl", "rows.csv"])
def with_malformed_row(request, live):
    """A synced source of 12 rows, of which row 3 became malformed and row 11 was deleted."""
    name = request.param
    header = ""
    row = '{{"_id": "r{0}", "text": "text {0}"}}\n'
    malformed_row = '{{"_id": "r{0}", "te\n'
    if name == "rows.csv":
        header = "_id,title,text\n"
        row = "r{0},,text {0}\n"
        malformed_row = "r{0},,text, {0}\n"
    source = live.project.root / name
    rows = [row.format(number) for number in range(12)]
    source.write_text(header + "".join(rows))
    use_rows(live, name)
    sync(live, force=True)

    rows[3] = malformed_row.format(3)
    source.write_text(header + "".join(rows[:11]))
    return live


def test_row_without_id_prevents_deletions(with_malformed_row):
    # The second sync has nothing to read.
    for _ in range(2):
        report = sync(with_malformed_row)
        assert report.deleted == []
        assert report.kept == 2
        assert report.unchanged == 10
        assert len(report.rejected) == 1
        assert "2 documents are kept: a row without a readable id" in str(report)


def test_row_without_id_can_be_forced(with_malformed_row):
    assert sync(with_malformed_row, force=True).deleted == ["r11", "r3"]


def test_sync_reads_queries_like_freshet_add(live):
    write_rows(live, [{"_id": "a", "text": "one", "queries": ["how?"], "fields": {"kind": "x"}}])

    sync(live, force=True)
    payload = live.ledger.latest(["a"])["a"].payload
    add_report = add_files(live, [live.project.root / "rows.jsonl"])
    sync_report = sync(live)

    assert payload["queries"] == ["how?"]
    assert add_report.unchanged == 1
    assert sync_report.unchanged == 1


def test_build_add_and_sync_clean_rows_alike(live):
    rows = [
        {"_id": "a", "text": "one", "queries": ["how?"], "fields": {"kind": "x"}, "fields2": 1},
        {"id": "b", "text": "two", "date": "2024-05-01"},
        {"_id": "c", "text": "three", "queries": "text"},
        {"_id": "d", "text": "", "title": ""},
        {"_id": "e", "text": 5},
        {"text": "no id"},
    ]
    path = live.project.root / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = CorpusSettings(path="rows.jsonl", source="files", quarantine_limit=1.0)
    source = open_source(settings, live.project.root)

    tables = build_corpus(source, settings, PassageSettings()).tables
    memory = source_contents.SourceMemory(live.project.root / "memory.json", "sync")
    contents = memory.update(source_contents.list_units(source, settings), settings)
    added = add_files(live, [path], dry_run=True)
    received = live.clean_rows(rows, "rows.jsonl")

    documents = tables["documents"]
    built = dict(zip(documents["document_id"], documents["content_hash"], strict=True))
    assert list(built) == ["a", "b"]
    assert contents.hashes == built
    assert {document.document_id: document.content_hash for document in received.documents} == built
    quarantine = tables["quarantine"]
    reasons = (quarantine["reason"] + ": " + quarantine["detail"]).tolist()
    assert [row.partition(":")[0] for row in reasons] == [
        "wrong type",
        "empty text",
        "wrong type",
        "missing id",
    ]
    assert [row["reason"] for row in contents.refused] == reasons
    assert [row["reason"] for row in added.rejected] == reasons
    assert [row.message for row in received.refused] == reasons


def test_built_document_with_queries_is_unchanged(live):
    row = {"_id": "numpy.sort", "text": "sorted", "queries": ["how?"]}
    (live.project.root / "rows.jsonl").write_text(json.dumps(row) + "\n")
    settings = CorpusSettings(path="rows.jsonl", source="files")
    source = open_source(settings, live.project.root)
    tables = build_corpus(source, settings, PassageSettings()).tables
    write_table(live.project.root, "documents", tables["documents"])

    segment = live.project.root / "segment.parquet"
    write_documents(live.project.root / "documents.parquet", segment, ["numpy.sort"])

    content_hash, queries = read_columns(segment, "content_hash", "queries")
    (cleaned,) = live.clean_rows([row], "rows").documents
    assert content_hash == [cleaned.content_hash]
    assert queries == ['["how?"]']


def test_refused_row_keeps_its_document(live):
    long_id = "x" * 150
    write_rows(
        live,
        [
            {"_id": long_id, "text": "one"},
            {"_id": "s", "text": "two"},
            {"_id": "t", "text": "three"},
            {"_id": "u", "text": "four"},
        ],
    )
    sync(live, force=True)

    write_rows(
        live,
        [
            {"_id": long_id, "text": None},
            {"_id": " s ", "text": None},
            {"_id": "u", "text": "four"},
        ],
    )
    report = sync(live)

    assert report.deleted == ["t"]
    assert [row["document_id"] for row in report.rejected] == [long_id, "s"]


def test_sync_deletes_once_malformed_row_is_fixed(live):
    rows = [f'{{"_id": "{name}", "text": "{name}"}}\n' for name in "abc"]
    source = live.project.root / "rows.jsonl"
    source.write_text("".join(rows))
    add_files(live, [source])
    use_rows(live, "rows.jsonl")
    sync(live, force=True)

    source.write_text(rows[0] + rows[1][:9] + "\n")
    kept_with_malformed_row = sync(live).kept
    source.write_text(rows[0] + rows[1])
    report = sync(live)

    assert kept_with_malformed_row == 2
    assert report.deleted == ["c"]


@pytest.fixture
def twelve_notes(live):
    """A synced source of twelve files."""
    write(live, **{f"n{number}": f"text {number}" for number in range(12)})
    sync(live)
    return live


@pytest.mark.parametrize("lost", [5, 12])
def test_large_source_loss_changes_nothing_until_forced(twelve_notes, lost):
    before = twelve_notes.content_hashes()
    for path in sorted((twelve_notes.project.root / "notes").iterdir())[:lost]:
        path.unlink()

    with pytest.raises(FreshetError, match="--force"):
        sync(twelve_notes)
    after_refusal = twelve_notes.content_hashes()
    forced = sync(twelve_notes, force=True)

    assert after_refusal == before
    assert len(forced.deleted) == lost


def test_missing_source_changes_nothing(twelve_notes):
    before = twelve_notes.content_hashes()
    shutil.rmtree(twelve_notes.project.root / "notes")

    with pytest.raises(FreshetError, match="does not exist"):
        sync(twelve_notes, force=True)

    assert twelve_notes.content_hashes() == before


def test_unlistable_subfolder_changes_nothing(live, monkeypatch):
    write(live, a="one")
    sync(live)
    write(live, b="two", **{"deep/c": "three"})
    list_folder = folder_module._list_folder

    def fail(folder):
        if folder.name == "deep":
            raise FreshetError(f"{folder} cannot be read: Permission denied")
        return list_folder(folder)

    monkeypatch.setattr(folder_module, "_list_folder", fail)
    with pytest.raises(FreshetError, match="deep cannot be read"):
        sync(live)
    assert list(live.content_hashes()) == ["a.md"]


def test_sync_deletes_only_documents_of_its_source(live, tmp_path):
    write(live, a="one", b="two")
    sync(live)
    source = tmp_path / "rows.csv"
    source.write_text("id,text\n1,first\n2,second\n")

    first = sync(live, "rows.csv", cwd=tmp_path)
    source.write_text("id,text\n2,second\n")
    second = sync(live, str(source))

    assert first.added == ["rows:1", "rows:2"]
    assert second.deleted == ["rows:1"]
    assert second.unchanged == 1
    assert second.beside == 2
    assert sorted(live.content_hashes()) == ["a.md", "b.md", "rows:2"]


def test_documents_of_other_origin_are_counted(live, tmp_path):
    write(live, a="one", b="two")
    (tmp_path / "more.jsonl").write_text('{"id": "x", "text": "added"}\n')
    add_files(live, [tmp_path / "more.jsonl"])

    report = sync(live)

    assert report.beside == 1
    assert sorted(live.content_hashes()) == ["a.md", "b.md", "x"]


def test_added_file_of_the_source_is_deleted_with_it(live, tmp_path):
    """It was added by hand first, and then found in the source."""
    write(live, a="one", b="two")
    add_files(live, [tmp_path / "notes/a.md"])
    first = sync(live)

    (tmp_path / "notes/a.md").unlink()
    second = sync(live)

    assert first.added == ["b.md"]
    assert first.updated == []
    assert second.deleted == ["a.md"]


def test_documents_added_by_hand_survive_sync(live):
    write(live, a="one", b="two")
    sync(live)
    (live.project.root / "notes/a.md").unlink()
    (live.project.root / "own.jsonl").write_text('{"id": "a.md", "text": "my own"}\n')
    add_files(live, [live.project.root / "own.jsonl"])

    report = sync(live)

    assert report.deleted == []
    assert sorted(live.content_hashes()) == ["a.md", "b.md"]


@pytest.fixture
def run_command(live, monkeypatch):
    """A function that runs a command in the project and returns its output."""
    builder = live.builder

    def builder_of_live(self):
        return builder

    def run(*arguments):
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output

    monkeypatch.chdir(live.project.root)
    monkeypatch.setattr(LiveIndex, "builder", property(builder_of_live))
    return run


def test_command_prints_counts_and_ids(live, run_command):
    write(live, a="one", b=b"\0")

    printed = run_command("sync")

    assert printed.startswith(
        "1 added, 2 deleted, 1 rejected (generation 1)\n  rejected  b.md  binary file: "
    )
    assert "\n  added     a.md\n  deleted   numpy.sort\n" in printed


def test_command_prints_json(live, run_command):
    write(live, a="one", b=b"\0")
    run_command("sync")

    report = json.loads(run_command("sync", "--json"))

    assert report["unchanged"] == 1
    assert report["beside"] == 0
    assert report["added"] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_random_edits_leave_no_difference(live, seed):
    """After each script of edits the index equals what the corpus stage would build.

    The counts of the report follow from the difference.
    """
    draw = random.Random(seed)
    added_by_hand = {}
    sync(live, force=True)

    for number in range(SCRIPTS):
        edit(live, draw, added_by_hand)
        before = live.content_hashes()
        report = sync(live, force=True)
        after = live.content_hashes()
        assert after == {**expected_hashes(live, before), **added_by_hand}, number

        updated = [name for name in after if name in before and after[name] != before[name]]
        unchanged = [name for name in build_hashes(live) if after[name] == before.get(name)]
        assert_changes(
            report,
            added=sorted(after.keys() - before.keys()),
            updated=sorted(updated),
            deleted=sorted(before.keys() - after.keys()),
            unchanged=len(unchanged),
        )


def edit(live, draw, added_by_hand):
    """Make up to four random edits of the source or the index."""
    for _ in range(draw.randint(0, 4)):
        # Texts of one word are duplicates at times.
        text = " ".join(draw.choices(WORDS, k=draw.choice([1, 3])))
        if draw.random() < 0.2:
            edit_index(live, draw, added_by_hand, text)
        else:
            edit_folder(live.project.root / "notes", draw, text)


def edit_index(live, draw, added_by_hand, text):
    """Add a document of another origin, or delete one of the source's."""
    if draw.random() < 0.5:
        row = {"id": f"row {draw.randrange(4)}", "text": text}
        (live.project.root / "row.jsonl").write_text(json.dumps(row))
        add_files(live, [live.project.root / "row.jsonl"])
        added_by_hand[row["id"]] = live.content_hashes()[row["id"]]
        return

    from_source = sorted(live.content_hashes().keys() - added_by_hand.keys())
    if from_source:
        delete_documents(live, [draw.choice(from_source)])


UNREADABLE = b"\xff\xfe\xfd"


def edit_folder(folder, draw, text):
    """Make a random edit of the files of the source."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    subfolder = draw.choice(["", "deep/", "deep/er/"])
    number = draw.randrange(12)
    suffix = draw.choice(["md", "txt", "html"])
    new = folder / f"{subfolder}{number}.{suffix}"
    new.parent.mkdir(parents=True, exist_ok=True)
    old = draw.choice(files or [new])
    kind = draw.choice(["write", "write", "ignore", "change", "delete", "rename", "break", "touch"])
    if kind == "write" or not files:
        new.write_text(text)
    elif kind == "ignore":
        (folder / ".gitignore").write_text(f"{draw.randrange(12)}.md\n")
    elif kind == "change":
        old.write_text(text)
    elif kind == "break":
        old.write_bytes(UNREADABLE)
    elif kind == "delete":
        old.unlink()
    elif kind == "rename":
        old.rename(new)
    else:
        old.touch()


def build_hashes(live):
    """Return the content hashes of the documents that the corpus stage makes of the source."""
    settings = CorpusSettings(path="notes", quarantine_limit=1.0)
    source = open_source(settings, live.project.root)
    if not any(isinstance(row, Row) for row in source.rows("documents")):
        return {}
    documents = build_corpus(source, settings, PassageSettings()).tables["documents"]
    return dict(zip(documents["document_id"], documents["content_hash"], strict=True))


def expected_hashes(live, before):
    """Return `build_hashes`, and the former hashes of files that cannot be read now."""
    files = open_source(CorpusSettings(path="notes"), live.project.root).files
    expected = build_hashes(live)
    for name, path in files.items():
        if path.read_bytes() == UNREADABLE and name in before:
            expected[name] = before[name]
    return expected


@pytest.fixture
def many_notes(live, documents):
    """A synced source of many files."""
    for number in range(documents):
        (live.project.root / "notes" / f"{number}.txt").write_text(f"note {number}")
    sync(live, force=True)
    return live


document_counts = pytest.mark.parametrize(
    "documents", [400, pytest.param(10_000, marks=pytest.mark.long)]
)


@document_counts
def test_unchanged_documents_cost_little_processor_time(many_notes, documents):
    started = time.process_time()
    report = sync(many_notes)
    seconds = time.process_time() - started

    assert report.unchanged == documents
    assert seconds < 2


@document_counts
def test_unchanged_documents_cost_few_calls(many_notes, documents):
    """Calls of Python functions are counted, because their number depends on no other process."""
    calls = 0

    def count_call(frame, event, argument):
        nonlocal calls
        if event == "call":
            calls += 1

    sys.setprofile(count_call)
    try:
        report = sync(many_notes)
    finally:
        sys.setprofile(None)

    assert report.unchanged == documents
    assert calls < 100 * documents
