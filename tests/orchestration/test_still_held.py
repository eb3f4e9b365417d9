"""Guards that a rollback of one retriever says which others still find what it took away, and what comes of that.

pytest tests/orchestration/test_still_held.py
"""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from model_code.live.collection import set_default_retriever
from orchestration.cli import app
from orchestration.live.collection import LiveCollection
from orchestration.project import Project
from orchestration.still_held import still_held
from tests.orchestration.live_example import BASE, StandInWriter, make_project, open_build

FOUND = {"id": "a", "title": "a", "text": "about a"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """hce and contrastive are live, hce by default, and both got three documents, one of them changed."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    open_build(Project(tmp_path), BASE, retriever="contrastive")
    set_default_retriever(Project(tmp_path).live, "hce")
    arriving = [FOUND, FOUND | {"id": "b", "title": "b"}, {"id": "str.split", "title": "str.split", "text": "changed"}]
    for name in ("hce", "contrastive"):
        collection = collection_of(Project(tmp_path), name)
        collection.receive(arriving, "api")
        collection.apply()
    return Project(tmp_path)


def collection_of(project, name):
    collection = LiveCollection(project, name)
    collection.__dict__["writer"] = StandInWriter(project.live, name)
    return collection


def rolled_back(*options):
    done = CliRunner().invoke(app, ["rollback", "--generation", *options], catch_exceptions=False)
    return done.output.splitlines()


def test_the_others_that_still_have_the_documents_are_named_with_what_will_happen(project):
    first, second = rolled_back("0")
    assert first.startswith("hce is at generation 0, ")
    assert second == (
        "contrastive still finds 3 of the documents that were rolled back (a, b, str.split), until it takes over, "
        "which takes them away there, too"
    )


def test_one_that_is_not_searched_by_default_takes_nothing_from_others(project):
    assert rolled_back("0", "--retriever", "contrastive")[1].startswith("hce still finds 3 of the documents")
    assert rolled_back("0", "--retriever", "contrastive")[1].endswith("(a, b, str.split), and keeps them")


def test_what_another_retriever_has_in_another_state_is_not_named(project):
    collection = collection_of(project, "contrastive")
    collection.remove(["a"], "api")
    collection.receive([FOUND | {"id": "b", "text": "newer"}], "api")
    collection.apply()
    rolled_back("0")
    assert still_held(project, "hce") == {"contrastive": ["str.split"]}


def test_where_nothing_was_taken_away_or_nobody_else_has_it_nothing_is_said(project):
    assert still_held(project, "hce") == {}
    rolled_back("0")
    assert len(rolled_back("1")) == 1, "forward again"
    rolled_back("0", "--retriever", "contrastive")
    assert len(rolled_back("0")) == 1
