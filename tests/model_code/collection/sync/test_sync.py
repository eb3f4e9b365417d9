"""Guards `freshet sync`: whatever was edited, the index then holds what the source holds, and
nothing is lost by it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time

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

SCRIPTS = 20  # of each life: a thousand in all, of which the first two hundred are run always
LIVES = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 50))]
WORDS = ["moss", "fern", "oak", "bark", "root", "leaf", "seed", "stem", "bud", "twig"]


@pytest.fixture
def live(tmp_path):
    project = make_project(tmp_path)
    (tmp_path / "params.yaml").write_text("{corpus: {path: notes}, retrievers: {hce: {}}}\n")
    (tmp_path / "notes").mkdir()
    return collection_of(project)


def use_rows(live, name):
    """Make a file of rows the project's own source."""
    live.project.params_file.write_text(
        f"{{corpus: {{path: {name}}}, retrievers: {{hce: {{}}}}}}\n"
    )


def write(live, **files):
    for name, text in files.items():
        path = live.project.root / "notes" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def changes(outcome):
    return outcome.added, outcome.updated, outcome.deleted, outcome.unchanged


def test_sync_follows_source_and_is_idempotent(live, monkeypatch):
    write(live, a="one", b="two", c="three")
    first = sync(live)
    assert changes(first) == (["a.md", "b.md", "c.md"], [], sorted(BASE), 0), (
        "what was built came from the source"
    )
    write(live, a="changed")
    (live.project.root / "notes/b.md").rename(live.project.root / "notes/d.md")
    assert changes(sync(live, dry_run=True)) == (["d.md"], ["a.md"], ["b.md"], 1)
    done = sync(live)
    assert changes(done) == (["d.md"], ["a.md"], ["b.md"], 1)
    monkeypatch.setattr(FolderSource, "read", None)  # nothing is read
    again = sync(live)
    assert changes(again) == ([], [], [], 3)
    assert again.generation == done.generation


def test_copied_folder_moves_no_document(live):
    write(live, **{f"notes/{number}": f"text {number}" for number in range(6)})
    sync(live, force=True)
    shutil.copytree(live.project.root / "notes/notes", live.project.root / "notes/a copy")
    for merge_duplicates in ("none", "text"):
        live.project.params_file.write_text(
            f"{{corpus: {{path: notes, merge_duplicates: {merge_duplicates}}}, "
            "retrievers: {hce: {}}}\n"
        )
        outcome = sync(live)
        assert outcome.deleted == []
        assert outcome.unchanged == (6 if merge_duplicates == "none" else 12)
    assert len(live.content_hashes()) == 12


def test_equal_texts_are_kept_in_sync_build_and_add(live):
    write(live, a="# A\n\nmoss", b="# B\n\nmoss", c="# C\n\nmoss")
    notes = live.project.root / "notes"
    assert add_files(live, [notes], dry_run=True).added == ["a.md", "b.md", "c.md"]
    assert sync(live, dry_run=True).added == ["a.md", "b.md", "c.md"]
    assert len(built(live)) == 3


def test_merging_leaves_out_only_new_documents(live):
    live.project.params_file.write_text(
        "{corpus: {path: notes, merge_duplicates: text}, retrievers: {hce: {}}}\n"
    )
    write(live, b="moss", c="fern")
    sync(live, force=True)
    write(live, a="Moss", c="moss", d="moss")

    outcome = sync(live)

    assert changes(outcome) == ([], ["c.md"], [], 1)
    assert outcome.merged == {"a.md": "b.md", "d.md": "b.md"}
    assert "1 updated, 1 unchanged, 2 merged" in str(outcome)
    assert "  merged    a.md  says the same as b.md" in str(outcome)
    added = add_files(live, [live.project.root / "notes"])
    assert added.merged == {"a.md": "b.md", "d.md": "b.md"}
    assert added.unchanged == 2
    (live.project.root / "notes/b.md").unlink()
    (live.project.root / "notes/c.md").unlink()
    assert sync(live).added == ["a.md"]


def test_files_that_git_ignores_are_counted(live):
    write(live, a="one", b="two")
    notes = live.project.root / "notes"
    (notes / ".gitignore").write_text("b.md\nbuild/\n")
    write(live, **{"build/c": "three"})
    outcome = sync(live, force=True)
    assert outcome.added == ["a.md"]
    line = "1 file and 1 folder are left out, because git ignores them"
    assert line in str(outcome)
    assert line in str(add_files(live, [notes]))


def test_unreadable_file_keeps_its_document(live):
    write(live, a="one", b="two")
    sync(live)
    write(live, a=b"caf\0")
    outcome = sync(live)
    assert changes(outcome) == ([], [], [], 1)
    assert [one["document_id"] for one in outcome.rejected] == ["a.md"]
    assert "a.md" in live.content_hashes()
    (live.project.root / "notes/a.md").unlink()
    assert sync(live).deleted == ["a.md"]


@pytest.mark.parametrize("name", [b"two\nlines.md", b"caf\xe9.md"])
def test_file_with_unusable_name_stops_no_deletion(live, name):
    write(live, a="one", b="two")
    sync(live, force=True)
    folder = live.project.root / "notes"
    with open(os.path.join(os.fsencode(folder), name), "wb") as stream:
        stream.write(b"text")
    (folder / "b.md").unlink()

    outcome = sync(live)

    assert outcome.deleted == ["b.md"]
    assert outcome.kept == 0
    (refused,) = outcome.rejected
    assert "bad id" in refused["reason"]
    assert refused["document_id"] == os.fsdecode(name).encode("unicode_escape").decode().replace(
        "\\udce9", "\\xe9"
    )


def test_what_is_not_read_of_files_is_reported_until_it_is_read(live):
    write(live, a=b"caf\xe9", b="two")
    folder = live.project.root / "notes"
    (folder / "old.doc").write_bytes(b"\xd0\xcf")
    outcome = sync(live, force=True)
    expected = [("old.doc", "unread file"), ("a.md", "encoding")]
    assert [(note.file, note.kind) for note in sort_notes(outcome.notes)] == expected
    assert "unread file: 1 file\n    old.doc  it is an old Office format" in str(outcome)
    assert read_reading_notes(live.project) == sort_notes(outcome.notes)
    # Files that are not read again keep their notes.
    assert len(sync(live).notes) == 2

    write(live, a="cafe")
    (folder / "old.doc").unlink()
    assert sync(live).notes == []
    assert read_reading_notes(live.project) == []


def test_refused_files_are_kept_in_mind_until_they_are_read(live, tmp_path):
    write(live, a="one", b=b"\0")
    outcome = sync(live, force=True)
    assert outcome.notes == []
    (note,) = read_reading_notes(live.project)
    assert (note.file, note.kind) == ("b.md", "refused file")
    write(live, b="two")
    sync(live)
    assert read_reading_notes(live.project) == []
    path = tmp_path / "scan.pdf"
    path.write_bytes(pdf([""]))
    add_files(live, [path])
    assert [note.file for note in read_reading_notes(live.project)] == ["scan.pdf"]
    path.write_bytes(pdf(["text"]))
    add_files(live, [path])
    assert read_reading_notes(live.project) == []


def test_added_file_with_unusable_name_is_refused_alone(live, tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "good.md").write_text("good")
    for name in (b"two\nlines.md", b"caf\xe9.md"):
        with open(os.path.join(os.fsencode(folder), name), "wb") as stream:
            stream.write(b"text")
    report = add_files(live, [folder])
    assert report.added == ["good.md"]
    assert [row["document_id"] for row in report.rejected] == ["caf\\xe9.md", "two\\nlines.md"]
    assert len(str(report).splitlines()) == 3


def test_notes_of_added_files_are_kept_until_they_are_deleted(live, tmp_path):
    path = tmp_path / "half.pdf"
    path.write_bytes(pdf(["one", ""]))
    report = add_files(live, [path])
    assert "pages without text: 1 file" in str(report)
    assert [note.file for note in read_reading_notes(live.project)] == ["half.pdf"]
    delete_documents(live, ["half.pdf"])
    assert read_reading_notes(live.project) == []


@pytest.mark.parametrize(
    ("name", "header", "row", "broken"),
    [
        ("rows.jsonl", "", '{{"_id": "r{0}", "text": "text {0}"}}\n', '{{"_id": "r{0}", "te\n'),
        ("rows.csv", "_id,title,text\n", "r{0},,text {0}\n", "r{0},,text, {0}\n"),
    ],
)
def test_row_without_id_prevents_deletions_unless_forced(live, name, header, row, broken):
    source, number = live.project.root / name, 12
    source.write_text(header + "".join(map(row.format, range(number))))
    (live.project.root / "params.yaml").write_text(
        f"{{corpus: {{path: {name}}}, retrievers: {{hce: {{}}}}}}\n"
    )
    sync(live, force=True)
    lines = [(broken if i == 3 else row).format(i) for i in range(number - 1)]
    source.write_text(header + "".join(lines))
    for _ in range(2):  # the second has nothing to read
        outcome = sync(live)
        assert outcome.deleted == []
        assert outcome.kept == 2
        assert outcome.unchanged == 10
        assert len(outcome.rejected) == 1
    assert "2 documents stay: no row names them" in str(outcome)
    assert sync(live, force=True).deleted == ["r11", "r3"]


def test_sync_reads_queries_like_freshet_add(live):
    source = live.project.root / "rows.jsonl"
    source.write_text('{"_id": "a", "text": "one", "queries": ["how?"], "fields": {"kind": "x"}}\n')
    use_rows(live, "rows.jsonl")
    sync(live, force=True)
    assert live.ledger.latest(["a"])["a"].payload["queries"] == ["how?"]
    assert add_files(live, [source]).unchanged == 1
    assert sync(live).unchanged == 1


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
    source, rows = (
        live.project.root / "rows.jsonl",
        [("x" * 150, "one"), ("s", "two"), ("t", "three"), ("u", "four")],
    )
    source.write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in rows))
    use_rows(live, "rows.jsonl")
    sync(live, force=True)
    rows = [("x" * 150, None), (" s ", None), ("u", "four")]
    source.write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in rows))
    outcome = sync(live)
    assert outcome.deleted == ["t"]
    assert [row["document_id"] for row in outcome.rejected] == ["x" * 150, "s"]


def test_sync_deletes_once_malformed_row_is_fixed(live):
    source, rows = (
        live.project.root / "rows.jsonl",
        [f'{{"_id": "{id_}", "text": "{id_}"}}\n' for id_ in "abc"],
    )
    source.write_text("".join(rows))
    add_files(live, [source])
    use_rows(live, "rows.jsonl")
    sync(live, force=True)
    source.write_text(rows[0] + rows[1][:9] + "\n")
    assert sync(live).kept == 2
    source.write_text(rows[0] + rows[1])
    assert sync(live).deleted == ["c"]


@pytest.mark.parametrize("lost", ["some", "all", "folder"])
def test_large_source_loss_changes_nothing_until_forced(live, lost):
    write(live, **{f"n{number}": f"text {number}" for number in range(12)})
    sync(live)
    before, folder = live.content_hashes(), live.project.root / "notes"
    for path in sorted(folder.iterdir())[: 5 if lost == "some" else 12]:
        path.unlink()
    if lost == "folder":
        folder.rmdir()
    with pytest.raises(FreshetError, match="does not exist" if lost == "folder" else "--force"):
        sync(live, force=lost == "folder")
    assert live.content_hashes() == before
    if lost != "folder":
        assert len(sync(live, force=True).deleted) == (5 if lost == "some" else 12)


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
    (tmp_path / "more.jsonl").write_text('{"id": "x", "text": "added"}\n')
    add_files(live, [tmp_path / "more.jsonl", tmp_path / "notes/a.md"])
    (tmp_path / "rows.csv").write_text("id,text\n1,first\n2,second\n")
    first = sync(live)
    assert first.added == ["b.md"]
    assert first.updated == []
    assert first.beside == 1
    assert sync(live, "rows.csv", cwd=tmp_path).added == ["rows:1", "rows:2"]
    (tmp_path / "rows.csv").write_text("id,text\n2,second\n")
    outcome = sync(live, str(tmp_path / "rows.csv"))
    assert outcome.deleted == ["rows:1"]
    assert outcome.unchanged == 1
    assert outcome.beside == 3
    (tmp_path / "notes/a.md").unlink()
    assert sync(live).deleted == ["a.md"], (
        "added by hand, and then seen in the source, it goes with it"
    )
    assert sorted(live.content_hashes()) == ["b.md", "rows:2", "x"]


def test_documents_added_by_hand_survive_sync(live):
    write(live, a="one", b="two")
    sync(live)
    (live.project.root / "notes/a.md").unlink()
    (live.project.root / "own.jsonl").write_text('{"id": "a.md", "text": "my own"}\n')
    add_files(live, [live.project.root / "own.jsonl"])
    assert sync(live).deleted == []
    assert sorted(live.content_hashes()) == ["a.md", "b.md"]


def test_the_command_counts_and_names(live, monkeypatch):
    monkeypatch.chdir(live.project.root)
    monkeypatch.setattr(LiveIndex, "builder", property(lambda self, builder=live.builder: builder))
    write(live, a="one", b=b"\0")
    done = CliRunner().invoke(app, ["sync"], catch_exceptions=False).output
    assert done.startswith(
        "1 added, 2 deleted, 1 rejected (generation 1)\n  rejected  b.md  binary file: "
    )
    assert "\n  added     a.md\n  deleted   numpy.sort\n" in done
    again = json.loads(CliRunner().invoke(app, ["sync", "--json"], catch_exceptions=False).output)
    assert again["unchanged"] == 1
    assert again["beside"] == 0
    assert again["added"] == []


@pytest.mark.parametrize("seed", LIVES)
def test_random_edits_leave_no_difference(live, seed):
    """After each script of edits the index is what the corpus stage would build, and the counts are
    those of that.
    """
    draw, beside = random.Random(seed), {}
    sync(live, force=True)
    for number in range(SCRIPTS):
        edit(live, draw, beside)
        before = live.content_hashes()
        outcome = sync(live, force=True)
        after, should = live.content_hashes(), expected(live, before) | beside
        assert after == should, number
        assert changes(outcome) == (
            sorted(after.keys() - before.keys()),
            sorted(one for one in after.keys() & before.keys() if after[one] != before[one]),
            sorted(before.keys() - after.keys()),
            sum(after[one] == before.get(one) for one in built(live)),
        )


def edit(live, draw, beside):
    for _ in range(draw.randint(0, 4)):
        # short ones are duplicates at times
        text = " ".join(draw.choices(WORDS, k=draw.choice([1, 3])))
        if draw.random() < 0.2:
            edit_index(live, draw, beside, text)
        else:
            edit_folder(live.project.root / "notes", draw, text)


def edit_index(live, draw, beside, text):
    """Add a document of another origin, or delete one of the source's."""
    if draw.random() < 0.5:
        row = {"id": f"row {draw.randrange(4)}", "text": text}
        (live.project.root / "row.jsonl").write_text(json.dumps(row))
        add_files(live, [live.project.root / "row.jsonl"])
        beside[row["id"]] = live.content_hashes()[row["id"]]
    elif there := sorted(live.content_hashes().keys() - beside.keys()):
        delete_documents(live, [draw.choice(there)])


def edit_folder(folder, draw, text):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    new = (
        folder
        / f"{draw.choice(['', 'deep/', 'deep/er/'])}{draw.randrange(12)}.{draw.choice(['md', 'txt', 'html'])}"
    )
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
        old.write_bytes(b"\xff\xfe\xfd")
    elif kind == "delete":
        old.unlink()
    elif kind == "rename":
        old.rename(new)
    else:
        old.touch()


def built(live):
    """The documents that the corpus stage makes of the source."""
    settings = CorpusSettings(path="notes", quarantine_limit=1.0)
    source = open_source(settings, live.project.root)
    if not any(isinstance(row, Row) for row in source.rows("documents")):
        return {}
    documents = build_corpus(source, settings, PassageSettings()).tables["documents"]
    return dict(zip(documents["document_id"], documents["content_hash"], strict=True))


def expected(live, before):
    """Those, and documents of files that cannot be read now."""
    files = open_source(CorpusSettings(path="notes"), live.project.root).files
    broken = [name for name, path in files.items() if path.read_bytes() == b"\xff\xfe\xfd"]
    return built(live) | {name: before[name] for name in broken if name in before}


@pytest.mark.parametrize("documents", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_unchanged_documents_cost_a_look_at_each(live, documents):
    """By Python's calls, at most a hundred a document, and by processor time: no machine is too
    busy for that.
    """
    folder, calls = live.project.root / "notes", []
    for number in range(documents):
        (folder / f"{number}.txt").write_text(f"note {number}")
    sync(live, force=True)
    started = time.process_time()
    assert sync(live).unchanged == documents
    assert time.process_time() - started < 2
    sys.setprofile(lambda frame, event, given: calls.append(event) if event == "call" else None)
    try:
        assert sync(live).unchanged == documents
    finally:
        sys.setprofile(None)
    assert len(calls) < 100 * documents
