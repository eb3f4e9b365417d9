"""Guards what the empty page is told: examples that are no test questions, and open pages."""

from __future__ import annotations

import socket

import pytest

from model_code.corpus.judgement_file import JudgedPair, record_judgements
from model_code.corpus.tables import make_table
from model_code.files import write_json
from model_code.project import Project
from orchestration.service import overview as module
from orchestration.service.example_questions import DOCSTRING_QUESTIONS
from orchestration.service.overview import (
    PAGES_FILE,
    example_questions,
    make_overview,
    open_pages,
)
from tests.live_example import make_project


@pytest.fixture
def project(tmp_path):
    project = make_project(tmp_path)
    set_corpus(project, "{path: rows.jsonl}")
    return project


def set_corpus(project, settings):
    """Write the settings of the corpus, as YAML, to the project's settings."""
    project.params_file.write_text(f"{{retrievers: {{hce: {{}}}}, corpus: {settings}}}\n")


def write_queries(project, split):
    folder = project.artifacts / "corpus"
    folder.mkdir(parents=True)
    query = {"query_id": "1", "text": "how to sort it", "split": split}
    make_table("queries", [query]).to_parquet(folder / "queries.parquet")
    make_table("qrels", []).to_parquet(folder / "qrels.parquet")


def test_own_questions_are_the_examples(project):
    record_judgements(project.judgements, [JudgedPair("what splits a string?", "str.split")])

    assert example_questions(project) == ["what splits a string?"]


def test_training_questions_are_examples(project):
    write_queries(project, "train")

    assert example_questions(project) == ["how to sort it"]


@pytest.mark.parametrize("settings", ["{source: installed_packages}", "{}"])
def test_examples_of_the_default_corpus_are_natural_questions(project, settings):
    set_corpus(project, settings)
    write_queries(project, "train")

    assert example_questions(project) == list(DOCSTRING_QUESTIONS.values())


def test_own_questions_come_before_those_of_the_default_corpus(project):
    set_corpus(project, "{source: installed_packages}")
    record_judgements(project.judgements, [JudgedPair("what splits a string?", "str.split")])

    assert example_questions(project) == ["what splits a string?"]


def test_test_questions_are_no_examples(project):
    write_queries(project, "test")

    assert example_questions(project) == ["numpy.sort", "str.split"]


def test_documents_without_titles_give_no_empty_examples(project, monkeypatch):
    def read_rows(generation, *columns):
        return [("a", ""), ("b", " ")]

    monkeypatch.setattr(module, "live_rows", read_rows)

    assert example_questions(project) == []


def test_empty_project_has_an_empty_overview(tmp_path):
    overview = make_overview(Project(tmp_path))

    assert overview.examples == []
    assert overview.loop == []
    assert overview.judgements is None


def test_only_pages_that_answer_are_linked(project):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pages = {"Dagster": f"http://127.0.0.1:{port}", "MLflow": "http://127.0.0.1:9/#/x"}
        write_json(project.state / PAGES_FILE, pages)

        assert open_pages(project) == {"Dagster": f"http://127.0.0.1:{port}"}


def test_closed_page_at_an_ipv6_address_is_not_linked(project):
    write_json(project.state / PAGES_FILE, {"Dagster": "http://[::1]:9"})

    assert open_pages(project) == {}
