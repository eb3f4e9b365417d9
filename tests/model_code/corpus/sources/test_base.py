"""Guards what sources share: the columns that the settings name must be there, and a source that changed is refused."""

from __future__ import annotations

import json

import pytest

from model_code.corpus.rows import Malformed, Row
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.corpus.sources.base import locked_source, make_lock, require_columns
from model_code.errors import FreshetError

DOCUMENTS = [{"ticket": 1, "body": "moss"}, {"ticket": 2, "body": "fern", "opened": "2025-01-01"}]
COLUMNS = {"document_id": "ticket", "text": "body"}


def check(records, table="documents", **columns) -> None:
    rows = (Row(table, f"it:{number}", values) for number, values in enumerate(records, start=1))
    require_columns(rows, table, ColumnSettings(**columns), "it.jsonl")


def test_defaults_are_optional_and_a_column_may_occur_in_a_later_row_only():
    check(DOCUMENTS, **COLUMNS)
    check(DOCUMENTS, **COLUMNS, date="opened")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**COLUMNS, "title": "subjct"}, r"'subjct' \(corpus.columns.title\); it has: ticket, body, opened\."),
        (
            {**COLUMNS, "text": "bdy", "date": "opend"},
            r"'bdy' \(corpus.columns.text\), 'opend' \(corpus.columns.date\);",
        ),
        ({}, r"'_id' \(corpus.columns.document_id\), 'text' \(corpus.columns.text\); it has: ticket"),
    ],
)
def test_a_column_that_no_row_has_is_refused_with_those_that_there_are(columns, message):
    with pytest.raises(FreshetError, match=f"^it.jsonl has no column {message}"):
        check(DOCUMENTS, **columns)


def test_a_misspelt_relevance_does_not_make_every_judgement_relevant():
    judged = [{"query-id": 1, "corpus-id": 2, "grade": 0}]
    with pytest.raises(FreshetError, match=r"'grde' \(corpus.columns.relevance\)"):
        check(judged, "qrels", relevance="grde")
    check(judged, "qrels", relevance="grade")


def test_answers_may_lie_among_the_metadata():
    asked = [{"_id": 1, "text": "who", "metadata": {"strings": ["nobody"]}}]
    check(asked, "queries", answers="strings")
    with pytest.raises(FreshetError, match=r"'string' \(corpus.columns.answers\)"):
        check(asked, "queries", answers="string")


def test_it_reads_no_further_than_it_must_and_says_nothing_of_a_table_without_rows():
    def rows():
        yield Malformed("documents", "it:1", "bad JSON", "", "")
        yield Row("documents", "it:2", {"_id": 1, "text": "moss"})
        raise AssertionError("read on")

    require_columns(rows(), "documents", ColumnSettings(), "it")
    check([], title="subject")


LOCKED = [{"_id": "1", "text": "moss"}]


def beir_settings(path: str = "data", **more) -> CorpusSettings:
    return CorpusSettings(source="beir", path=path, **more)


def test_the_lock_does_not_depend_on_where_the_source_lies(tmp_path, write_beir):
    for place in ("here", "there/deep"):
        write_beir(tmp_path / place / "data", LOCKED)
    first, second = make_lock(beir_settings(), tmp_path / "here"), make_lock(beir_settings(), tmp_path / "there/deep")
    absolute = make_lock(beir_settings(str(tmp_path / "here/data")), tmp_path)
    assert first == second == absolute
    assert {"source", "versions", "watermark", "content_hash"} <= first.keys()
    assert str(tmp_path) not in json.dumps(absolute)


def test_a_changed_added_or_other_source_is_refused_with_the_remedy(tmp_path, write_beir):
    write_beir(tmp_path / "data", LOCKED)
    lock = make_lock(beir_settings(), tmp_path)
    with pytest.raises(FreshetError, match="corpus.source in params.yaml is 'installed_packages'.*freshet ingest"):
        locked_source(CorpusSettings(), tmp_path, lock)
    write_beir(tmp_path / "data", [*LOCKED, {"_id": "2", "text": "fern"}])
    with pytest.raises(FreshetError, match=r"changed since `freshet ingest` \(corpus.jsonl: .* -> .*\).*again"):
        locked_source(beir_settings(), tmp_path, lock)
    write_beir(tmp_path / "data", LOCKED, [{"_id": "q", "text": "?"}], {"test": [("q", "1", 1)]})
    with pytest.raises(FreshetError, match=r"qrels/test.tsv: absent -> "):
        locked_source(beir_settings(), tmp_path, lock)
