"""Tests of `freshet judge`: files are recorded with their refused rows, and hits are judged."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from freshet.results import Hit
from model_code.collection.generations.searcher import Searcher
from model_code.corpus.judgement_file import JudgedPair, read_judgements
from orchestration.cli import app
from tests.live_example import make_project

HITS = [
    Hit(
        rank=rank,
        score=0.5,
        document_id=document_id,
        title=document_id,
        text="",
        start=0,
        end=0,
        section=None,
        snippet="a snippet",
        marks=(),
        fields={},
        date=None,
        path=(),
        generation=0,
    )
    for rank, document_id in enumerate(["numpy.sort", "str.split"], start=1)
]


class FakeSearcher:
    """A searcher that finds both documents for every question."""

    def search(self, text, k):
        return HITS[:k]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Searcher, "open", lambda live: FakeSearcher())
    return make_project(tmp_path)


@pytest.fixture
def run(project):
    def invoke(*arguments, typed=None):
        return CliRunner().invoke(app, ["judge", *arguments], input=typed)

    return invoke


@pytest.fixture
def table(project):
    path = project.root / "judged.csv"
    path.write_text("question,document\nhow to sort?,numpy.sort\nwhat splits?,nothing\n")
    return path


def test_file_is_recorded_and_refused_rows_are_listed(project, run, table):
    result = run(str(table))

    assert result.exit_code == 0
    assert read_judgements(project.judgements) == [JudgedPair("how to sort?", "numpy.sort")]
    assert result.output.splitlines() == [
        "1 judgement of 1 question read",
        "1 row refused:",
        "  judged.csv:3  dangling qrel: there is no document 'nothing'",
        "judgements.jsonl: 1 new, 0 changed, 0 unchanged",
        "1 of about 75 judged questions; 1 train, 30 are needed",
    ]


def test_dry_run_records_nothing(project, run, table):
    result = run(str(table), "--dry-run")

    assert "1 judgement of 1 question would be recorded" in result.output
    assert not project.judgements.exists()


def test_command_fails_if_all_rows_are_refused(run, table):
    table.write_text("question,document\nwhat splits?,nothing\n")

    assert run(str(table)).exit_code == 1


def test_json_has_all_refused_rows(run, table):
    record = json.loads(run(str(table), "--json").output)

    assert record["changes"] == {"added": 1, "changed": 0, "unchanged": 0}
    assert record["refused"][0]["location"] == "judged.csv:3"
    assert record["questions"]["total"] == 1


@pytest.mark.parametrize(
    ("typed", "judged"),
    [
        ("sort?\ny\nn\n\n", [("numpy.sort", 1), ("str.split", 0)]),
        ("sort?\ns\ny\n\n", [("str.split", 1)]),
        ("sort?\nd\n\n", []),
        ("sort?\ny\nq\n", [("numpy.sort", 1)]),
        ("sort?\nmaybe\ny\n", [("numpy.sort", 1)]),
        ("sort?\n", []),
        ("", []),
    ],
)
def test_hits_are_judged_interactively(project, run, typed, judged):
    result = run("--interactive", typed=typed)

    assert result.exit_code == 0
    pairs = read_judgements(project.judgements)
    assert [(pair.document_id, pair.relevance) for pair in pairs] == judged


def test_questions_of_a_file_are_asked(project, run):
    (project.root / "questions.txt").write_text("first?\n\nsecond?\n")

    run("--interactive", "questions.txt", "-k", "1", typed="y\nn\n")

    assert read_judgements(project.judgements) == [
        JudgedPair("first?", "numpy.sort", 1),
        JudgedPair("second?", "numpy.sort", 0),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_file_of_questions_is_read_in_its_encoding(project, run, encoding):
    (project.root / "questions.txt").write_text("Wie sortiert man für später?\n", encoding)

    run("--interactive", "questions.txt", "-k", "1", typed="y\n")

    (judged,) = read_judgements(project.judgements)
    assert judged.question == "Wie sortiert man für später?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a file of judgements"),
        (("--interactive", "--json"), "--interactive cannot be combined"),
        (("--interactive", "--grade", "g"), "--interactive cannot be combined"),
        (("nowhere.csv",), "nowhere.csv is not a file or a folder"),
    ],
)
def test_wrong_request_is_explained(run, arguments, message):
    result = run(*arguments)

    assert result.exit_code != 0
    assert message in result.output + str(result.exception)
