"""Guards `freshet add`, `update`, `delete`, `compact` and `rollback --generation`: what they print,
by this process and by the service, that a dry run changes nothing, and that what nobody needs can
be freed.
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
    writer = property(lambda self: StandInBuilder(self.project.live, self.retriever))
    monkeypatch.setattr(LiveIndex, "builder", writer)
    monkeypatch.chdir(tmp_path)
    return make_project(tmp_path)


@pytest.fixture
def run(project):
    """Runs a command; gives its exit code and output."""

    def call(*arguments, **more):
        done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, **more)
        return done.exit_code, done.output

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


def test_add_reports_each_row_and_supports_dry_run(run, project, more):
    told = json.loads(run("add", more, "--dry-run", "--json")[1])
    assert (
        told | {"added": ["a"], "updated": ["str.split"], "unchanged": 1, "generation": None}
        == told
    )
    only_known = json.loads(run("update", more, "--dry-run", "--json")[1])
    assert only_known["updated"] == ["str.split"]
    assert only_known["rejected"][-1]["document_id"] == "a"
    assert not (project.live / "ledger.sqlite").exists()
    assert run("add", more) == (
        0,
        (
            "1 added, 1 updated, 1 rejected, 1 unchanged (generation 1)\n"
            "  rejected  more.jsonl:4  b  missing column: the row has no column for text\n"
        ),
    )
    code, output = run("add", more, "--json")
    assert code == 0
    assert json.loads(output) == {
        "added": [],
        "updated": [],
        "deleted": [],
        "erased": [],
        "waiting": [],
        "unchanged": 3,
        "generation": 1,
        "dry_run": False,
        "refined": None,
        "behind": {},
        "ignored": "",
        "merged": {},
        "notes": [],
        "rejected": told["rejected"],
    }
    reason = "missing column: the row has no column for text"
    assert told["rejected"] == [
        {"file": "more.jsonl", "row": 4, "document_id": "b", "reason": reason}
    ]
    assert live_status(project, "hce")["ledger"]["documents"]["rejected"] == 1


def test_files_and_folders_are_added_by_path(run, project, tmp_path):
    (tmp_path / "notes/deep").mkdir(parents=True)
    (tmp_path / "notes/deep/fern.md").write_text("# Ferns\n\nThey unroll.")
    (tmp_path / "notes/moss.pdf").write_bytes(pdf(["moss"], "Moss"))
    (tmp_path / "notes/broken.pdf").write_bytes(b"%PDF")
    code, output = run("add", tmp_path / "notes", "--json")
    assert code == 0
    assert json.loads(output)["added"] == ["deep/fern.md", "moss.pdf"]
    (refused,) = json.loads(output)["rejected"]
    assert refused["document_id"] == "broken.pdf"
    assert refused["reason"][:16] == "unreadable file:"
    (tmp_path / "params.yaml").write_text("corpus: {path: notes}\nretrievers: {hce: {}}\n")
    assert run("add", tmp_path / "notes/deep/fern.md")[1].startswith("1 unchanged")
    assert texts(project, ["deep/fern.md"]) == {"deep/fern.md": "They unroll."}


def test_duplicate_file_names_and_ids_are_one_document(run, project, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text(folder)
    with pytest.raises(
        FreshetError, match=r"would both be the document 'readme\.md': add the folder around them"
    ):
        run("add", tmp_path / "one/readme.md", tmp_path / "two/readme.md")
    twice = '{"id": "a", "text": "first"}\n{"id": "a", "text": "second"}\n'
    assert run("add", "-", input=twice)[1] == "1 added (generation 1)\n"
    assert texts(project, ["a", "readme.md"]) == {"a": "second"}


def test_missing_columns_are_reported_once(run, tmp_path):
    (tmp_path / "rows.csv").write_text("id,body\n1,x\n2,y\n")
    told = r"rows\.csv has no column 'text' \(corpus\.columns\.text\); it has: id, body"
    with pytest.raises(FreshetError, match=told):
        run("add", tmp_path / "rows.csv")
    with pytest.raises(FreshetError, match="absent.csv is not a file"):
        run("add", tmp_path / "absent.csv")


def test_formats_and_standard_input(run, project, tmp_path):
    (tmp_path / "x.csv").write_text("_id,title,text\nc,c,from csv\n")
    (tmp_path / "x.tsv").write_text("_id\ttitle\ttext\nd\td\tfrom tsv\n")
    assert run("add", "x.csv", "x.tsv", "-", input='{"id": "e", "text": "from input"}\n')[
        1
    ].startswith("3 added")
    run("add", "-", "--format", "csv", input="_id,title,text\nf,f,csv input\n")
    assert texts(project, "cdef") == {
        "c": "from csv",
        "d": "from tsv",
        "e": "from input",
        "f": "csv input",
    }


def test_adding_again_applies_changes_of_killed_process(run, project, more):
    collection_of(project).receive(read_file(more), "more.jsonl")
    told = json.loads(run("add", more, "--dry-run", "--json")[1])
    done = json.loads(run("add", more, "--json")[1])
    assert done["added"] == ["a"]
    assert done["updated"] == ["str.split"]
    assert done["unchanged"] == 1
    assert done["generation"] == 1
    assert done | {"dry_run": True, "generation": None} == told
    assert texts(project, "a") == {"a": "new"}
    assert live_status(project, "hce")["ledger"]["lag"]["pending"] == 0


def test_failed_add_can_be_repeated(run, project, more, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(LiveIndex, "apply", lambda *_: 1 / 0)
        for command in (("add", more), ("delete", "numpy.sort")):
            with pytest.raises(ZeroDivisionError):
                run(*command)
    assert run("delete", "numpy.sort") == (0, "1 deleted (generation 1)\n")
    assert texts(project, ["a", "numpy.sort"]) == {"a": "new"}
    assert run("add", more)[1].startswith("1 added, 1 rejected, 2 unchanged"), (
        "numpy.sort is there again"
    )


def test_unchanged_rows_apply_no_pending_changes(run, project, more):
    """Another process has recorded a document and is about to make it searchable with those that
    follow it.
    """
    run("add", more)
    LiveIndex(project).receive([{"id": "z", "title": "z", "text": "waits"}], "another process")
    assert run("add", more)[1].startswith("1 rejected, 3 unchanged (generation 1)")
    assert run("delete", "nothing")[0] == 1
    assert texts(project, ["z"]) == {}
    assert live_status(project, "hce")["ledger"]["lag"]["pending"] == 1


@pytest.mark.parametrize(
    ("form", "rows", "told"),
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
def test_only_malformed_rows_are_refused(run, project, form, rows, told):
    code, output = run("add", "-", "--format", form, input=rows)
    assert code == 0
    assert output.splitlines()[0] == "1 added, 1 rejected (generation 1)"
    assert (
        re.sub(r"input:\d", "input", output.splitlines()[1])
        == f"  rejected  standard input  a  {told}"
    )
    assert texts(project, "ab").keys() == {"b"}


def test_delete_fails_if_no_id_is_known(run, project):
    assert run("delete", "numpy.sort", "nothing")[1].startswith(
        "1 deleted, 1 rejected (generation 1)\n"
    )
    assert run("delete", "numpy.sort") == (0, "1 unchanged (generation 1)\n")
    assert run("delete", "nothing")[0] == 1
    assert texts(project, BASE).keys() == {"str.split"}


def test_compact_and_roll_back_to_a_generation(run, project, more):
    run("add", more)
    assert run("tools", "compact")[1].startswith("hce generation 2")
    assert run("rollback", "--generation", 0)[1].startswith("hce is at generation 3")
    assert texts(project, ["a", *BASE]) == BASE
    assert live_status(project, "hce")["ledger"]["documents"]["rolled_back"] == 3
    assert run("add", more)[1].startswith("1 added, 1 updated")


def serve(monkeypatch, project, searchable=True):
    """A running service that makes searchable what the ledger has, in this process; returns how
    often it was asked.
    """
    asked = []

    def apply():
        asked.append(1)
        if searchable:
            collection_of(project).apply()
        return SimpleNamespace(
            generation=collection_of(project).generation.number if searchable else None
        )

    def find_service(self):
        return lambda project: SimpleNamespace(apply=apply)

    monkeypatch.setattr(
        LiveIndex,
        "find_service",
        property(find_service, lambda self, value: None),
        raising=False,
    )
    return asked


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
    (tmp_path / "caf\udce9.jsonl").write_text('{"id": "a", "title": "a", "text": "some text"}\n')
    assert run("add", "caf\udce9.jsonl")[1] == "1 added (generation 1)\n"
    assert collection_of(project).ledger_view.life("a")[0].source == "caf?.jsonl"


def test_what_the_service_has_not_applied_yet_waits(project, monkeypatch):
    asked = serve(monkeypatch, project, searchable=False)
    for _ in range(2):
        outcome = commands.delete_documents(collection_of(project), ["str.split"])
        assert outcome.waiting == ["str.split"]
        assert outcome.deleted == []
        assert outcome.unchanged == 0
    assert len(asked) == 2


def test_generations_that_nothing_needs_can_be_freed(run, project):
    run("delete", "numpy.sort")
    run("delete", "str.split")
    assert garbage.find_garbage(project, keep=2) == []
    found = garbage.find_garbage(project, keep=1)
    assert [item.label for item in found] == ["live generation 1 of hce"]
    garbage.delete_garbage(project, found)
    assert garbage.find_garbage(project, keep=1) == []
    assert texts(project, BASE) == {}
    assert run("rollback", "--generation", 0)[0] == 0
    assert texts(project, BASE) == BASE
