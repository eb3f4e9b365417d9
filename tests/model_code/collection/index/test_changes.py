"""Tests of `freshet add`, `update`, `delete`, `compact` and `rollback --generation`.

They cover the printed reports, changes by this process and by a running service, dry runs, and the
deletion of generations that are no longer needed.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from model_code.collection.index import changes as commands
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.status import live_status
from model_code.corpus.clean_rows import read_file
from model_code.errors import FreshetError
from orchestration.cli import app, garbage
from tests.document_files import pdf
from tests.live_example import BASE, StandInBuilder, collection_of, make_project, texts


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose live collection has no vectors."""

    def make_stand_in(self):
        return StandInBuilder(self.project.live, self.retriever)

    monkeypatch.setattr(LiveIndex, "builder", property(make_stand_in))
    monkeypatch.chdir(tmp_path)
    return make_project(tmp_path)


@pytest.fixture
def run(project):
    """A function that runs a command and returns its exit code and output."""

    def call(*arguments, **options):
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, words, catch_exceptions=False, **options)
        return result.exit_code, result.output

    return call


@pytest.fixture
def more(tmp_path):
    """A file with a new document, a changed one, an equal one and a malformed row."""
    path = tmp_path / "more.jsonl"
    rows = [
        {"_id": "a", "title": "a", "text": "new"},
        {"_id": "str.split", "title": "s", "text": "changed"},
        {"_id": "numpy.sort", "title": "numpy.sort", "text": BASE["numpy.sort"]},
        {"_id": "b", "title": "b"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


MISSING_TEXT = "missing column: the row has no column for text"


def run_json(run, *arguments):
    """Run a command that succeeds and return the report that it prints."""
    code, output = run(*arguments, "--json")
    assert code == 0
    return json.loads(output)


def test_dry_run_reports_what_would_change(run, project, more):
    report = run_json(run, "add", more, "--dry-run")

    assert report["added"] == ["a"]
    assert report["updated"] == ["str.split"]
    assert report["unchanged"] == 1
    assert report["generation"] is None
    assert not (project.live / "ledger.sqlite").exists()


def test_dry_run_of_update_rejects_unknown_documents(run, project, more):
    report = run_json(run, "update", more, "--dry-run")

    assert report["updated"] == ["str.split"]
    assert report["rejected"][-1]["document_id"] == "a"
    assert not (project.live / "ledger.sqlite").exists()


def test_add_prints_counts_and_rejected_rows(run, project, more):
    code, output = run("add", more)

    assert code == 0
    assert output == (
        "1 added, 1 updated, 1 rejected, 1 unchanged (generation 1)\n"
        f"  rejected  more.jsonl:4  b  {MISSING_TEXT}\n"
    )


def test_add_prints_json(run, project, more):
    run("add", more)

    report = run_json(run, "add", more)

    assert report == {
        "added": [],
        "updated": [],
        "deleted": [],
        "erased": [],
        "waiting": [],
        "expired": 0,
        "unchanged": 3,
        "generation": 1,
        "dry_run": False,
        "refined": None,
        "behind": {},
        "ignored": "",
        "merged": {},
        "notes": [],
        "rejected": [{"file": "more.jsonl", "row": 4, "document_id": "b", "reason": MISSING_TEXT}],
    }


def test_expired_document_is_not_counted_as_added(run, tmp_path):
    path = tmp_path / "notices.jsonl"
    rows = [
        {"_id": "old", "title": "old", "text": "The ferry is closed.", "expires": "2020-01-01"},
        {"_id": "new", "title": "new", "text": "The ferry is open.", "expires": "2999-01-01"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    report = run_json(run, "add", path, "--dry-run", "--json")

    assert report["added"] == ["new"]
    assert report["expired"] == 1
    assert "1 expired" in run("add", path, "--dry-run")[1]


COPIES = "{corpus: {merge_duplicates: text}, retrievers: {hce: {}}}\n"


def add_rows(project, *rows, dry_run=False):
    """Add rows to a project that merges copies, and return the report."""
    (project.root / "params.yaml").write_text(COPIES)
    path = project.root / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return commands.add_files(collection_of(project), [path], dry_run=dry_run)


def row(document_id, text, **fields):
    return {"_id": document_id, "title": document_id, "text": text, **fields}


def test_copy_of_a_document_is_merged(project):
    report = add_rows(project, row("sort", BASE["numpy.sort"]))

    assert report.merged == {"sort": "numpy.sort"}


def test_copy_of_a_waiting_document_is_merged(project):
    collection_of(project).receive([row("a", "Read a file.")], "test")

    assert add_rows(project, row("b", "Read a file.")).merged == {"b": "a"}


def test_copy_outlives_a_removal_that_waits(project):
    collection_of(project).remove(["numpy.sort"], "test")

    report = add_rows(project, row("sort", BASE["numpy.sort"]))

    assert report.added == ["sort"]
    assert set(texts(project, ["numpy.sort", "sort"])) == {"sort"}


def test_copy_of_a_text_that_changes_is_kept(project):
    report = add_rows(
        project, row("sort", BASE["numpy.sort"]), row("numpy.sort", "Sort rows of a table.")
    )

    assert report.merged == {}
    assert texts(project, ["sort"]) == {"sort": BASE["numpy.sort"]}


def test_copy_of_an_expired_document_is_kept(project):
    add_rows(project, row("old", "The ferry is open.", expires="2020-01-01"))

    new = row("new", "The ferry is open.", expires="2999-01-01")
    report = add_rows(project, new, dry_run=True)

    assert report.added == ["new"]
    old = row("older", "The ferry runs.", expires="2020-01-01")
    report = add_rows(project, old, row("newer", "The ferry runs."), dry_run=True)
    assert report.added == ["newer"]


def test_rejected_row_is_counted_once(run, project, more):
    run("add", more)
    run("add", more)

    assert live_status(project, "hce")["ledger"]["documents"]["rejected"] == 1


@pytest.fixture
def notes(tmp_path):
    """A folder with a Markdown file, a PDF and a broken PDF."""
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/fern.md").write_text("# Ferns\n\nThey unroll.")
    (folder / "moss.pdf").write_bytes(pdf(["moss"], "Moss"))
    (folder / "broken.pdf").write_bytes(b"%PDF")
    return folder


def test_files_of_a_folder_are_added_by_path(run, project, notes):
    report = run_json(run, "add", notes)

    (refused,) = report["rejected"]
    assert report["added"] == ["deep/fern.md", "moss.pdf"]
    assert texts(project, ["deep/fern.md"]) == {"deep/fern.md": "They unroll."}
    assert refused["document_id"] == "broken.pdf"
    assert refused["reason"].startswith("unreadable file:")


def test_file_of_the_source_has_its_path_in_the_source(run, project, notes):
    run("add", notes)
    params = "corpus: {path: notes}\nretrievers: {hce: {}}\n"
    (project.root / "params.yaml").write_text(params)

    _, output = run("add", notes / "deep/fern.md")

    assert output.startswith("1 unchanged")


def test_files_of_one_name_are_refused(run, project, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text(folder)

    with pytest.raises(
        FreshetError, match=r"would both be the document 'readme\.md': add the folder around them"
    ):
        run("add", tmp_path / "one/readme.md", tmp_path / "two/readme.md")

    assert texts(project, ["readme.md"]) == {}


def test_last_row_of_an_id_counts(run, project):
    rows = '{"id": "a", "text": "first"}\n{"id": "a", "text": "second"}\n'

    _, output = run("add", "-", input=rows)

    assert output == "1 added (generation 1)\n"
    assert texts(project, ["a"]) == {"a": "second"}


def test_missing_columns_are_reported_once(run, tmp_path):
    (tmp_path / "rows.csv").write_text("id,body\n1,x\n2,y\n")

    with pytest.raises(
        FreshetError,
        match=r"rows\.csv has no column 'text' \(corpus\.columns\.text\); it has: id, body",
    ):
        run("add", tmp_path / "rows.csv")


def test_missing_file_is_refused(run, tmp_path):
    with pytest.raises(FreshetError, match="absent.csv is not a file"):
        run("add", tmp_path / "absent.csv")


def test_formats_and_standard_input_can_be_mixed(run, project, tmp_path):
    (tmp_path / "x.csv").write_text("_id,title,text\nc,c,from csv\n")
    (tmp_path / "x.tsv").write_text("_id\ttitle\ttext\nd\td\tfrom tsv\n")

    _, output = run("add", "x.csv", "x.tsv", "-", input='{"id": "e", "text": "from input"}\n')

    assert output.startswith("3 added")
    assert texts(project, "cde") == {"c": "from csv", "d": "from tsv", "e": "from input"}


def test_format_of_standard_input_can_be_chosen(run, project):
    run("add", "-", "--format", "csv", input="_id,title,text\nf,f,csv input\n")

    assert texts(project, "f") == {"f": "csv input"}


@pytest.fixture
def killed_add(project, more):
    """A file whose rows were received by a process that was killed before it applied them."""
    collection_of(project).receive(read_file(more), "more.jsonl")
    return more


def test_adding_again_applies_changes_of_killed_process(run, project, killed_add):
    report = run_json(run, "add", killed_add)

    assert report["added"] == ["a"]
    assert report["updated"] == ["str.split"]
    assert report["unchanged"] == 1
    assert report["generation"] == 1
    assert texts(project, "a") == {"a": "new"}
    assert live_status(project, "hce")["ledger"]["lag"]["pending"] == 0


def test_dry_run_reports_changes_of_killed_process(run, killed_add):
    planned = run_json(run, "add", killed_add, "--dry-run")

    report = run_json(run, "add", killed_add)

    assert planned == {**report, "dry_run": True, "generation": None}


@pytest.fixture
def _failed_commands(run, more, monkeypatch):
    """An addition and a deletion that failed after they were recorded."""

    def fail_to_apply(self):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(LiveIndex, "apply", fail_to_apply)
        with pytest.raises(ZeroDivisionError):
            run("add", more)
        with pytest.raises(ZeroDivisionError):
            run("delete", "numpy.sort")


@pytest.mark.usefixtures("_failed_commands")
def test_failed_delete_can_be_repeated(run, project):
    code, output = run("delete", "numpy.sort")

    assert code == 0
    assert output == "1 deleted (generation 1)\n"
    assert texts(project, ["a", "numpy.sort"]) == {"a": "new"}


@pytest.mark.usefixtures("_failed_commands")
def test_failed_add_can_be_repeated(run, more):
    run("delete", "numpy.sort")

    _, output = run("add", more)

    # This adds numpy.sort, which was deleted after the first addition.
    assert output.startswith("1 added, 1 rejected, 2 unchanged")


def test_unchanged_rows_apply_no_pending_changes(run, project, more):
    """Another process has recorded a document and is about to apply it with later ones."""
    run("add", more)
    LiveIndex(project).receive([{"id": "z", "title": "z", "text": "waits"}], "another process")

    _, add_output = run("add", more)
    delete_code, _ = run("delete", "nothing")

    assert add_output.startswith("1 rejected, 3 unchanged (generation 1)")
    assert delete_code == 1
    assert texts(project, ["z"]) == {}
    assert live_status(project, "hce")["ledger"]["lag"]["pending"] == 1


@pytest.mark.parametrize(
    ("form", "rows", "reason"),
    [
        (
            "csv",
            b"_id,title,text,queries\na,a,text a,how is a?\nb,b,text b,\n",
            "wrong type: queries is a str, not a list of texts; call a field otherwise",
        ),
        (
            "jsonl",
            b'{"_id": "a", "title": "a", "text": "\xff"}\n{"_id": "b", "title": "b", "text": '
            b'"whole"}\n',
            "invalid UTF-8: text holds bytes that are no UTF-8",
        ),
    ],
)
def test_only_malformed_rows_are_refused(run, project, form, rows, reason):
    code, output = run("add", "-", "--format", form, input=rows)

    counts, rejected = output.splitlines()[:2]
    assert code == 0
    assert counts == "1 added, 1 rejected (generation 1)"
    # The number of the row depends on the header.
    assert re.sub(r"input:\d", "input", rejected) == f"  rejected  standard input  a  {reason}"
    assert texts(project, "ab").keys() == {"b"}


def test_delete_reports_unknown_ids(run, project):
    code, output = run("delete", "numpy.sort", "nothing")

    assert code == 0
    assert output.startswith("1 deleted, 1 rejected (generation 1)\n")
    assert texts(project, BASE).keys() == {"str.split"}


def test_deleting_again_changes_nothing(run):
    run("delete", "numpy.sort")

    code, output = run("delete", "numpy.sort")

    assert code == 0
    assert output == "1 unchanged (generation 1)\n"


def test_delete_fails_if_no_id_is_known(run):
    code, _ = run("delete", "nothing")

    assert code == 1


def test_compact_makes_a_generation(run, more):
    run("add", more)

    _, output = run("tools", "compact")

    assert output.startswith("hce generation 2")


def test_rollback_to_a_generation_restores_its_documents(run, project, more):
    run("add", more)

    _, output = run("rollback", "--generation", 0)

    assert output.startswith("hce is at generation 2")
    assert texts(project, ["a", *BASE]) == BASE
    assert live_status(project, "hce")["ledger"]["documents"]["rolled_back"] == 3


def test_rolled_back_documents_can_be_added_again(run, more):
    run("add", more)
    run("rollback", "--generation", 0)

    _, output = run("add", more)

    assert output.startswith("1 added, 1 updated")


def serve(monkeypatch, project, searchable=True):
    """Run a service in this process that applies changes, or that does not come to it.

    Returns:
        A list that gets an entry for each call of the service.
    """
    calls = []

    def apply():
        calls.append(1)
        generation = None
        if searchable:
            collection_of(project).apply()
            generation = collection_of(project).generation.number
        return SimpleNamespace(generation=generation)

    def find_service(project):
        return SimpleNamespace(apply=apply)

    def return_find_service(self):
        return find_service

    def ignore_value(self, value):
        """Let `LiveIndex` set the attribute without an effect."""

    attribute = property(return_find_service, ignore_value)
    monkeypatch.setattr(LiveIndex, "find_service", attribute, raising=False)
    return calls


@pytest.fixture
def served(project, monkeypatch):
    """The live index of a project with a running service, and the calls of the service.

    The index must not apply changes itself.
    """
    calls = serve(monkeypatch, project)
    index = collection_of(project)
    monkeypatch.setattr(index, "apply", None)
    return index, calls


def test_running_service_applies_recorded_changes(served, more):
    index, calls = served

    report = commands.add_files(index, [more])

    assert report.added == ["a"]
    assert report.updated == ["str.split"]
    assert report.unchanged == 1
    assert report.failed is False
    assert report.generation == 1
    assert calls == [1]


def test_rejected_rows_are_counted_beside_a_service(served, more):
    index, _ = served

    report = commands.add_files(index, [more])

    assert [row["row"] for row in report.rejected] == [4]
    assert index.ledger_view.counts()["rejected"] == 1


def test_service_is_not_called_without_changes(served, more):
    index, calls = served
    commands.add_files(index, [more])

    report = commands.add_files(index, [more], only_known=True)

    assert report.unchanged == 3
    assert calls == [1]


def test_running_service_applies_deletions(served, more):
    index, _ = served
    commands.add_files(index, [more])

    assert commands.delete_documents(index, ["a"]).deleted == ["a"]


def test_file_with_non_utf8_name_is_added(run, project, tmp_path):
    name = "caf\udce9.jsonl"
    (tmp_path / name).write_text('{"id": "a", "title": "a", "text": "some text"}\n')

    _, output = run("add", name)

    (event,) = collection_of(project).ledger_view.life("a")
    assert output == "1 added (generation 1)\n"
    assert event.source == "caf?.jsonl"


def test_deletion_of_a_waiting_document_is_reported(project):
    index = collection_of(project)
    index.receive([{"_id": "a", "title": "a", "text": "new"}], "test")

    report = commands.delete_documents(index, ["a"])

    assert report.deleted == ["a"]
    assert report.unchanged == 0


def test_changes_wait_until_the_service_applies_them(project, monkeypatch):
    calls = serve(monkeypatch, project, searchable=False)

    for _ in range(2):
        report = commands.delete_documents(collection_of(project), ["str.split"])
        assert report.waiting == ["str.split"]
        assert report.deleted == []
        assert report.unchanged == 0
    assert len(calls) == 2


@pytest.fixture
def _two_deletions(run):
    """Generations 1 and 2, each of which deletes a document."""
    run("delete", "numpy.sort")
    run("delete", "str.split")


@pytest.mark.usefixtures("_two_deletions")
def test_kept_generations_are_no_garbage(project):
    assert garbage.find_garbage(project, keep=2) == []


@pytest.mark.usefixtures("_two_deletions")
def test_generations_that_nothing_needs_can_be_deleted(project):
    items = garbage.find_garbage(project, keep=1)
    garbage.delete_garbage(project, items)

    assert [item.label for item in items] == ["live generation 1 of hce"]
    assert garbage.find_garbage(project, keep=1) == []
    assert texts(project, BASE) == {}


@pytest.mark.usefixtures("_two_deletions")
def test_first_generation_can_be_restored_after_collection(run, project):
    garbage.delete_garbage(project, garbage.find_garbage(project, keep=1))

    code, _ = run("rollback", "--generation", 0)

    assert code == 0
    assert texts(project, BASE) == BASE


def test_empty_cell_changes_nothing_in_a_partial_update(run, project, tmp_path):
    collection = collection_of(project)
    collection.receive([{"_id": "a", "text": "some text", "year": 2020, "tag": "x"}], "test")
    (tmp_path / "changed.csv").write_text("_id,text,year,tag\na,,,y\n")

    run("update", "--partial", "changed.csv")

    (document,) = collection.present_documents(["a"]).values()
    assert document.text == "some text"
    assert document.fields == {"year": 2020, "tag": "y"}
